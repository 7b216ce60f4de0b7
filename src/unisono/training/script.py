"""Runs a user's own script as a learner: ``python -m unisono.training.script SCRIPT ARGS``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from unisono.training.ends import in_one_line


def main() -> None:
    """As ``python SCRIPT ARGS``; errors of other learners and of the user are one line."""
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    with in_one_line():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
