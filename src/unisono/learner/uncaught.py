"""How uncaught exceptions are shown to the user.

What the user can mend is one line, said once in a run, not once a learner. Anything else is a bug,
and its traceback says which learner it is of, as torch.distributed does for its ranks. Debuggers
stop where the exception is raised, before any of this.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from unisono.coordinator.client import Abandoned, CoordinatorLost
from unisono.errors import RESUME, UserError
from unisono.learner.placement import DIRECTORY, LEARNER
from unisono.learner.ranks import Rank
from unisono.output import tell

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def one_line(error: BaseException) -> str | None:
    """An error of the user, or of another learner, in one line; None: a bug."""
    if isinstance(error, Abandoned):
        return f"stopped, because {error.line}"
    if isinstance(error, CoordinatorLost):
        return f"{error}; {RESUME}"
    return str(error) if isinstance(error, UserError) else None


def say_once(line: str) -> None:
    """Prints a line, unless another learner of the run on this machine has printed it."""
    folder = os.environ.get(DIRECTORY)
    if folder is not None:
        digest = hashlib.sha256(line.encode()).hexdigest()[:16]
        try:
            Path(folder, f"said-{digest}").touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:
            pass  # The run's folder is gone: the line is worth more than its being the only one.
    tell(f"unisono: {line}")


def install() -> None:
    """Installs the exception hook, which calls the one before it for bugs."""
    before: Hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = one_line(error)
        if line is not None:
            say_once(line)
        elif (
            before is sys.__excepthook__ and not isinstance(error, KeyboardInterrupt) and _number()
        ):
            text = "".join(traceback.format_exception(kind, error, trace))
            lines = [f"[learner {_number()}] {line}\n" for line in text.splitlines()]
            print("".join(lines), end="", file=sys.stderr, flush=True)
        else:
            before(kind, error, trace)

    sys.excepthook = show


def _number() -> str | None:
    """The number that the launcher gave this learner, if there is one."""
    if named := os.environ.get(LEARNER):
        return named
    try:
        rank = Rank.from_environment()
    except UserError:
        return None
    return None if rank is None else str(rank.number)
