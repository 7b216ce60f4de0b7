"""Processes that do not outlive the one that uses them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """In a child, as soon as it can: from now on the kernel kills it when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_with_parent() -> None:
    """Ends this worker of ``multiprocessing`` as soon as its parent has, however that happened.

    A pool's workers would wait for work for ever: each holds the other end of the pipe that it
    waits at, and their fork server goes on as long as they do.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was not started by multiprocessing"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
