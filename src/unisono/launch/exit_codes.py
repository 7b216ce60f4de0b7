"""How the process of a learner ends when its run cannot go on: one line, and an exit status."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import torch.distributed as dist

from unisono.coordinator.client import Abandoned
from unisono.errors import Diverged, ProcessLost
from unisono.fabric.local.child_processes import ChildExit
from unisono.fabric.local.forked import name_process
from unisono.learner.uncaught import one_line, say_once

ABANDONED = 3
"""Exit status of a learner that leaves because another one failed."""
FAILED = 2
DIVERGED = 75
"""Exit status of a learner that has diverged: others may go on, and it may be replaced."""
INCOMPLETE = 76
"""Exit status of a learner that has lost one of its processes: as if it had been killed, too."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors of others and of the user inside end the process, without a traceback.

    With or without one, the process ends without freeing groups of torch.distributed.
    """
    status = 1
    atexit.register(lambda: _end_with_groups(status))  # the first: it is called after all others
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception as error:
        line = one_line(error)
        if line is None:
            raise
        say_once(line)
        if isinstance(error, ProcessLost):
            sys.stdout.flush()
            name_process(_title(INCOMPLETE))
            os._exit(INCOMPLETE)  # freeing a group of which a process is gone may wait for it
        status = _status(error)
        leave(status)


def leave(status: int) -> NoReturn:
    """Ends the process with a status that its launcher takes for what it means here."""
    name_process(_title(status))
    sys.exit(status)


def left_with(ended: ChildExit, *statuses: int) -> bool:
    """Whether it ended with one of these statuses, and they mean what they mean here.

    A user's script may have the same status for a reason of its own, but not the title.
    """
    return ended.status in statuses and ended.title == _title(ended.status)


def lost(name: str) -> ChildExit:
    """The end of a learner that has lost one of its processes."""
    return ChildExit(name, INCOMPLETE, _title(INCOMPLETE))


def _end_with_groups(status: int) -> None:
    """Ends a process that has process groups as the interpreter would, but without freeing them.

    A thread of gloo that wants the GIL for its last tensor while the interpreter is finalized is
    ended by it, and takes the process along: ``terminate called without an active exception``.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase):
            with suppress(Exception):
                found.flush()
    os._exit(status)


def _title(status: int) -> str:
    return f"unisono: {status}"


def _status(error: Exception) -> int:
    if isinstance(error, Abandoned):
        return ABANDONED
    return DIVERGED if isinstance(error, Diverged) else FAILED
