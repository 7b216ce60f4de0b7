"""Worker processes of ``multiprocessing`` that do not outlive the process that uses them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Ends this process as soon as its parent has ended, however that happened.

    A pool's workers would wait for work for ever: each holds the other end of the pipe that it
    waits at, and their fork server goes on as long as they do.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was not started by multiprocessing"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
