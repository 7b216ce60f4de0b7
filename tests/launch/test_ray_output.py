"""What learners print on a cluster, as Ray prints it here: late, and from a thread of its own."""

from __future__ import annotations

import sys
import threading

import pytest

from unisono.launch import ray_output
from unisono.launch.ray_output import ClusterOutput, print_end


def marks(number: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a learner prints at its end, on both streams."""
    print_end("run-1", number)
    found = capsys.readouterr()
    return found.out.rstrip("\n"), found.err.rstrip("\n")


def copied(line: str, stream: str) -> None:
    """As Ray does it: the stream is looked up when the line is there."""
    print(f"\x1b[36m(LearnerActor pid=7)\x1b[0m {line}", file=getattr(sys, stream))


def test_lines_that_come_late_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {number: marks(number, capsys) for number in (0, 1)}
    output, asked = ClusterOutput("run-1"), threading.Event()

    def ray() -> None:
        asked.wait(60)
        for number, (out, error) in ends.items():
            copied(f"the last line of learner {number}", "stdout")
            copied(out, "stdout")
            copied(error, "stderr")

    thread = threading.Thread(target=ray)
    with output.watched():
        thread.start()
        copied("an early line", "stdout")
        asked.set()
        output.wait_for([0, 1])
        found = capsys.readouterr()
    thread.join(60)
    said = [line.partition("m ")[2] for line in found.out.splitlines()]
    assert said == ["an early line", *(f"the last line of learner {n}" for n in (0, 1))]
    assert found.err == ""


def test_waiting_has_an_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_output, "PATIENCE_S", 0.01)
    output = ClusterOutput("run-1")
    out, _ = marks(0, capsys)
    streams = sys.stdout, sys.stderr
    with output.watched():
        copied(out, "stdout")  # and nothing on the other stream
        copied(out.replace("run-1", "run-2"), "stdout")
        output.wait_for([0])
    assert (sys.stdout, sys.stderr) == streams
    assert "run-2" in capsys.readouterr().out, "a line that is not ours stays"


def test_nobody_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_output, "PATIENCE_S", 3600.0)
    ClusterOutput("run-1").wait_for([])


def test_a_script_may_close_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null", "w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    print_end("run-1", 0)
