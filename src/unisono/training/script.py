"""Runs a user's own script as a learner: ``python -m unisono.training.script SCRIPT ARGS``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from unisono.coordinator.client import Abandoned
from unisono.events import UserError
from unisono.training.launch import ABANDONED


def main() -> None:
    """As ``python SCRIPT ARGS``; errors of other learners and of the user are one line."""
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except Abandoned as abandoned:
        print(f"unisono: stopped, because {abandoned.who} failed", file=sys.stderr)
        sys.exit(ABANDONED)
    except UserError as error:
        print(f"unisono: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
