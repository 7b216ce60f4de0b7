"""How the process of a learner ends when its run cannot go on: one line, and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from unisono.coordinator.client import Abandoned
from unisono.errors import Diverged, ProcessLost
from unisono.learner.uncaught import one_line, say_once

ABANDONED = 3
"""Exit status of a learner that leaves because another one failed."""
FAILED = 2
DIVERGED = 75
"""Exit status of a learner that has diverged: others may go on, and it may be replaced.

It is ``EX_TEMPFAIL`` of sysexits.h, which a user's script hardly has for reasons of its own."""

INCOMPLETE = 76
"""Exit status of a learner that has lost one of its processes: as if it had been killed, too."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors of others and of the user inside end the process, without a traceback."""
    try:
        yield
    except Exception as error:
        line = one_line(error)
        if line is None:
            raise
        say_once(line)
        if isinstance(error, ProcessLost):
            sys.stdout.flush()
            os._exit(INCOMPLETE)  # freeing a group of which a process is gone may wait for it
        sys.exit(_status(error))


def _status(error: Exception) -> int:
    if isinstance(error, Abandoned):
        return ABANDONED
    return DIVERGED if isinstance(error, Diverged) else FAILED
