"""Work beside the training, in a thread of the lowest priority, and this process' clocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_LOWEST = 19


class Background:
    """Runs functions one after the other, in a thread that takes a core only where one is idle.

    On Linux each thread has a priority of its own. Beside a busy thread on the same core one of the
    lowest priority gets 15 parts of 1,039, that is 1.5%.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "background", initializer=_lower_priority)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Runs it as soon as those before it are done."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Waits for what is under way; what has not begun is dropped."""
        self._pool.shutdown(cancel_futures=True)


def now() -> float:
    """Seconds on this machine's monotonic clock, the one of the fabric's ``now``."""
    return time.monotonic()


def cpu_time() -> float:
    """Seconds that this thread has had a core; what else runs on the machine does not count."""
    return time.thread_time()


def process_start() -> float:
    """When this process was started, on the clock of ``now``."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)  # 0: this thread, not the whole process
