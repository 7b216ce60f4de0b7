"""Runs a user's own script as a learner: ``python -m unisono.training.script SCRIPT ARGS``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.coordinator.client import Abandoned
from unisono.events import UserError
from unisono.training.launch import ABANDONED


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as Python itself would."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """As ``python SCRIPT ARGS``; errors of other learners and of the user are one line."""
    del sys.path[0]  # of this module's own start
    try:
        run_script(sys.argv[1], sys.argv[2:])
    except Abandoned as abandoned:
        print(f"unisono: stopped, because {abandoned.who} failed", file=sys.stderr)
        sys.exit(ABANDONED)
    except UserError as error:
        print(f"unisono: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
