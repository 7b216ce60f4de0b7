"""``unisono``: the program. It imports nothing slow before it can be interrupted."""

from __future__ import annotations

import io
import signal
import sys
import threading

from unisono.errors import UserError

INTERRUPTED = 130


def main() -> None:
    """Runs a command; what the user can mend is one line and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A word that the terminal cannot show is no reason to end.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from unisono.cli.app import app
        from unisono.coordinator.client import Abandoned

        try:
            app()
        except Abandoned as error:
            raise UserError(str(error)) from None
    except UserError as error:
        print(f"unisono: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("unisono: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def heed_termination() -> None:
    """SIGTERM, by which schedulers and containers end a command, does what Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the command is ending
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


if __name__ == "__main__":
    main()
