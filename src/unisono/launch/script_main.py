"""Runs a user's own script as a learner: ``python -m unisono.launch.script_main SCRIPT ARGS``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.launch.exit_codes import exit_on_error


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as Python itself would."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """As ``python SCRIPT ARGS``; errors of other learners and of the user are one line."""
    del sys.path[0]  # of this module's own start
    with exit_on_error():
        run_script(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
