"""Work in one process and in several: the same results, in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono.errors import UserError
from unisono.speech.worker_pool import WorkerPool


def start(base: int) -> int:
    return base


def add(base: int, item: int) -> tuple[int, int]:
    return base + item, os.getpid()


def fail(base: int, item: int) -> int:
    raise ValueError(f"item {item}")


def die(base: int, item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_one_process_is_this_one_and_reads_as_it_goes() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            taken.append(item)
            yield item

    with WorkerPool(1, start, 10) as pool:
        results = pool.map(add, items())
        assert next(results) == (10, os.getpid())
        assert taken == [0]
        assert [value for value, _ in results] == [11, 12, 13, 14]


def test_two_processes_give_the_same_in_order_and_read_little_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    with WorkerPool(2, start, 10) as pool:
        results = pool.map(add, items(), chunk=3)
        first = next(results)
        assert len(taken) <= 3 * 7
        rest = list(results)
        assert [value for value, _ in [first, *rest]] == list(range(10, 110))
        assert os.getpid() not in {process_pitch for _, process_pitch in rest}
        with pytest.raises(ValueError, match="item 0"):
            list(pool.map(fail, range(3)))
        with pytest.raises(UserError, match="was killed"):
            list(pool.map(die, range(3)))


INTERRUPTED = """
import os, signal, sys, time
from unisono.speech.worker_pool import WorkerPool

def work(base, item):
    time.sleep(600 * (item == 20))
    return item

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    try:
        with WorkerPool(2, int, 0) as pool:
            for item in pool.map(work, range(21)):
                if item == 19:  # one process works and one waits: as a terminal does, tell both
                    os.killpg(0, signal.SIGINT)
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


def test_ctrl_c_ends_the_processes_without_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(INTERRUPTED)
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        start_new_session=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "interrupted\n")


KILLED = """
import os, time
from unisono.speech.worker_pool import WorkerPool

def work(base, item):
    time.sleep(600 * (item > 20))
    return os.getpid()

if __name__ == "__main__":
    with WorkerPool(2, int, 0) as pool:
        for pid in pool.map(work, range(23)):
            print(pid, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_uses_them(tmp_path: Path, end: signal.Signals) -> None:
    """Those that work and those that wait, and their fork server, which holds the output open."""
    script = tmp_path / "work.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        workers = {int(process.stdout.readline()) for _ in range(21)}
        assert workers and process.pid not in workers
        process.send_signal(end)
        assert process.wait(100) == -end
        assert process.stdout.read() == ""  # it comes to an end only when nobody is left


@pytest.mark.parametrize("error", [EOFError(), BlockingIOError(11, "try again")])
def test_a_process_that_cannot_be_started_is_told_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that forks them ends with an error, or starting one does: too many processes."""

    def refuse(process: object) -> None:
        raise error

    monkeypatch.setattr(multiprocessing.get_context("forkserver").Process, "start", refuse)
    with (
        WorkerPool(2, start, 1) as pool,
        pytest.raises(UserError, match="no worker process can be started"),
    ):
        list(pool.map(add, range(4)))
