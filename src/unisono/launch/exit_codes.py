"""How the process of a learner ends when its run cannot go on: one line, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from unisono.coordinator.client import Abandoned
from unisono.learner.uncaught import one_line, say_once

ABANDONED = 3
"""Exit status of a learner that leaves because another one failed."""
FAILED = 2


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
        sys.exit(ABANDONED if isinstance(error, Abandoned) else FAILED)
