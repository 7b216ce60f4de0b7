"""Where the log of this process goes: to standard error, and how much of it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # takes no type before Python 3.11

VERBOSE = "UNISONO_VERBOSE"
"""Set for the processes of a run that was started with ``--verbose``."""


class _ToStandardError(_StreamHandler):
    """Writes to what standard error is now, not to what it was when the log began."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record."""
        self.stream = sys.stderr
        super().emit(record)


def log_to_terminal(*, verbose: bool = False) -> None:
    """Shows warnings of this package, with ``verbose`` what it does as well, also in children."""
    if verbose:
        os.environ[VERBOSE] = "1"
    root = logging.getLogger("unisono")
    root.setLevel(logging.DEBUG if os.environ.get(VERBOSE) else logging.WARNING)
    if not root.handlers:
        root.addHandler(_ToStandardError())
        root.propagate = False
