"""Real processes that are really killed, stopped and made to fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from support.commands import (
    SLOW_TIMEOUT,
    Start,
    check_coverage,
    later,
    lines_of,
    start_training,
    summary_of,
    until,
)
from unisono.data import Part, Prep

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("way", ["dynamic", later("static"), later("server"), later("gossip")])
def test_the_rest_go_on_when_a_learner_is_killed(
    start: Start, prep: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "run"
    command = start_training(start, prep, out, way, "--no-respawn")
    logs = [out / "logs" / f"learner-{n}.log" for n in range(3)]
    until(lambda: lines_of(logs[1]) > 40, what="learner 1 to train")
    os.kill(command.learner(1), signal.SIGKILL)
    after = [lines_of(log) for log in logs]
    killed = time.monotonic()
    until(lambda: all(lines_of(logs[n]) > after[n] + 30 for n in (0, 2)), what="the rest to go on")
    assert time.monotonic() - killed < SLOW_TIMEOUT / 2
    assert command.wait() == 0, command.output()
    summary = summary_of(out)
    assert summary["learners_lost"] == 1
    assert summary["ended"] == "finished"
    # By the data, and not by what those tell who live to the end.
    assert summary["examples"] == 4 * Prep.open(prep).frames_of(Part.TRAIN)
    redone = check_coverage(out, summary)
    counts = summary["minibatches"]
    assert isinstance(counts, dict)
    assert counts["returned"] >= counts["redone"] > 0
    assert len(redone) <= counts["redone"]
    assert "learner 1 was lost (killed by SIGKILL); the others go on\n" in command.output()


@pytest.mark.parametrize("way", ["dynamic", later("static"), later("gossip"), later("server")])
def test_the_coordinator_comes_back(start: Start, prep: Path, tmp_path: Path, way: str) -> None:
    out = tmp_path / "run"
    command = start_training(start, prep, out, way)
    log = out / "logs" / "learner-0.log"
    for lines in (40, 200):
        until(lambda lines=lines: lines_of(log) > lines, what="learner 0 to train")
        os.kill(command.named("coordinator"), signal.SIGKILL)
    assert command.wait() == 0, command.output()
    summary = summary_of(out)
    assert summary["learners_lost"] == 0
    assert check_coverage(out, summary) == []
    assert command.output().count("coordinator killed by SIGKILL; started again") == 2


@pytest.mark.parametrize(
    "way", [later("static"), later("dynamic"), later("gossip"), later("server")]
)
def test_a_stopped_learner_is_refused_and_rejoins(
    start: Start, prep: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "run"
    command = start_training(start, prep, out, way, "--epochs", "8", timeout=1.0)
    log = out / "logs" / "learner-2.log"
    until(lambda: lines_of(log) > 40, what="learner 2 to train")
    pid = command.learner(2)
    os.kill(pid, signal.SIGSTOP)
    metrics = out / "metrics.jsonl"
    until(lambda: '"event":"lost"' in metrics.read_text(), what="learner 2 to be declared dead")
    os.kill(pid, signal.SIGCONT)
    assert command.wait() == 0, command.output()
    summary = summary_of(out)
    assert (summary["learners_lost"], summary["learners_joined"]) == (1, 1)
    check_coverage(out, summary)
    assert '"who":"learner-2.0#1"' in log.read_text()


SCRIPT = """
import sys, torch, unisono
from torch.utils.data import TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(100_000, 4), torch.zeros(100_000, dtype=torch.long))
with unisono.Learner(model, optimizer, sys.argv[1]) as learner:
    for step, (x, y) in enumerate(learner.draw(data, epochs=50, batch_size=16)):
        learner.step(torch.nn.functional.cross_entropy(model(x), y))
        if step == 300 and learner.number == 1:
            print("failing now", flush=True)
            raise RuntimeError("a bug of learner 1")
"""


@pytest.mark.parametrize("strategy", [later("averaging"), later("allreduce")])
def test_an_exception_ends_the_run_everywhere(start: Start, tmp_path: Path, strategy: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = start("launch", "--learners", 3, "--timeout", SLOW_TIMEOUT, script, strategy)
    until(lambda: "failing now" in command.output(), what="learner 1 to fail")
    assert command.wait(300) == 2
    output = command.output()
    first = output.index("RuntimeError: a bug of learner 1")
    assert "Traceback" in output[:first]
    assert output.count("Traceback") == 1, output
    assert output.count("stopped, because learner 1 failed") == 1  # said once for all
    assert "unisono: learner 1 failed (exit status 1)" in output[first:]
