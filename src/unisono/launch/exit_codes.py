"""How the process of a learner ends when its run cannot go on: one line, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from unisono.coordinator.client import Abandoned, CoordinatorLost
from unisono.errors import UserError

ABANDONED = 3
"""Exit status of a learner that leaves because another one failed."""
FAILED = 2


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors of others and of the user inside end the process, without a traceback."""
    try:
        yield
    except Abandoned as abandoned:
        print(f"unisono: stopped, because {abandoned.line}", file=sys.stderr)
        sys.exit(ABANDONED)
    except CoordinatorLost as lost:
        print(f"unisono: {lost}; go on from a checkpoint with --resume", file=sys.stderr)
        sys.exit(FAILED)
    except UserError as error:
        print(f"unisono: {error}", file=sys.stderr)
        sys.exit(FAILED)
