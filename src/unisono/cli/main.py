"""``unisono``: the program. It imports nothing slow before it can be interrupted."""

from __future__ import annotations

import errno
import io
import logging
import signal
import sys
import threading

from unisono.errors import UserError
from unisono.output import go_on_without_output, output_lost, tell

INTERRUPTED = 130
_PRINTED = {"doctor", "--keys", "--help", "-h", "--version"}
"""What is of no use where it cannot be printed."""
_UNREACHABLE = {errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG}
"""Errors of paths that a user gave: whether there is a file cannot even be asked."""


def main() -> None:
    """Runs a command; what the user can mend is one line and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A word that the terminal cannot show is no reason to end.
        sys.stdout.reconfigure(errors="backslashreplace")
    go_on_without_output()
    try:
        _run()
    except UserError as error:
        tell(f"unisono: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        tell("unisono: interrupted")
        sys.exit(INTERRUPTED)


def heed_termination() -> None:
    """SIGTERM, by which schedulers and containers end a command, does what Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the command is ending
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def _run() -> None:
    from unisono.cli.app import app
    from unisono.coordinator.client import Abandoned

    try:
        app()
    except Abandoned as error:
        raise UserError(str(error)) from None
    except OSError as error:
        if error.filename is None or error.errno not in _UNREACHABLE:
            raise
        logging.getLogger(__name__).debug("unisono: a path is unusable", exc_info=True)
        raise UserError(f"cannot use {error.filename}: {error.strerror}") from None
    except SystemExit as end:
        if output_lost() and not end.code and _PRINTED & set(sys.argv):
            sys.exit(2)
        raise


if __name__ == "__main__":
    main()
