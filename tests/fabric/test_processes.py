"""Real processes: results, and a report of every way not to end well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.alive import is_alive
from support.processes import Parent, Processes, ProcessesFailed, distributed_test


def write(rank: int, directory: Path, text: str) -> int:
    (directory / str(rank)).write_text(text)
    while len(list(directory.glob("[0-9]"))) < 3:
        time.sleep(0.01)
    return rank * 10


def misbehave(rank: int, directory: Path, how: str) -> None:
    if rank == 0:
        return
    if how == "raise":
        raise KeyError("a bug")
    if how == "exit":
        sys.stdout.flush()
        os._exit(3)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang":
        (directory / "hangs").touch()
        wait_for_ever()


def wait_for_ever() -> None:
    while True:
        time.sleep(100)


def ask(parent: Parent, count: int) -> list[int]:
    return [parent.ask(number) for number in range(count)]


def test_results_come_in_the_order_of_ranks() -> None:
    assert distributed_test(write, 3, "text") == [0, 10, 20]


@pytest.mark.parametrize(
    ("how", "report"),
    [
        ("raise", "rank 1 failed:\n(?s:.*)KeyError: 'a bug'"),
        ("exit", "rank 1 ended with exit code 3"),
        ("signal", "rank 1 died of SIGSEGV"),
    ],
)
def test_who_does_not_end_well_is_reported(how: str, report: str) -> None:
    with pytest.raises(ProcessesFailed, match=report):
        distributed_test(misbehave, 2, how)


def test_who_hangs_is_reported_with_its_stack() -> None:
    with Processes() as processes:
        for rank in range(2):
            processes.start(f"rank {rank}", misbehave, rank, processes.directory, "hang")
        while not (processes.directory / "hangs").exists():
            time.sleep(0.01)
        with pytest.raises(ProcessesFailed) as failed:
            processes.wait(limit=3.0)
    assert "rank 0 had ended" in str(failed.value)
    assert "rank 1 hung" in str(failed.value)
    assert "in wait_for_ever" in str(failed.value)


def test_one_that_is_killed_here_is_no_trouble_and_a_paused_one_goes_on() -> None:
    with Processes() as processes:
        processes.start("victim", wait_for_ever)
        processes.start("sleeper", time.sleep, 0.2)
        processes.pause("sleeper")
        processes.kill("victim")
        processes.resume("sleeper")
        assert processes.wait() == {"victim": None, "sleeper": None}


def start_and_die(directory: Path) -> None:
    """As a test that is ended in the middle, without a word to its processes."""
    processes = Processes()
    processes.start("orphan", note_and_wait, directory / "pid")
    while not (directory / "pid").exists():
        time.sleep(0.01)
    os._exit(0)


def note_and_wait(path: Path) -> None:
    path.with_suffix(".draft").write_text(str(os.getpid()))
    path.with_suffix(".draft").rename(path)
    wait_for_ever()


@pytest.mark.long
def test_a_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    code = f"""from pathlib import Path; from test_processes import start_and_die
start_and_die(Path({str(tmp_path)!r}))"""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=path, check=True, timeout=200)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 100
    while is_alive(pid):
        assert time.monotonic() < deadline, "it lives"
        time.sleep(0.01)


def test_a_process_may_ask() -> None:
    with Processes() as processes:
        processes.start(
            "asker", ask, 3, serve=lambda number: processes.answer("asker", number * number)
        )
        assert processes.wait() == {"asker": [0, 1, 4]}
