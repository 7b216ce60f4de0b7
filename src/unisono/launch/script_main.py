"""A user's own script as a learner: ``python -m unisono.launch.script_main [-m] SCRIPT ARGS``."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.errors import UserError
from unisono.launch.exit_codes import exit_on_error
from unisono.learner.uncaught import install, say_once
from unisono.output import go_on_without_output
from unisono.verbosity import log_to_terminal


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as Python itself would."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs a module in this process, as ``python -m`` would.

    Raises:
        UserError: there is no such module.
    """
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UserError(f"there is no module {name}")
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def main() -> None:
    """As ``python SCRIPT ARGS``; errors of other learners and of the user are one line."""
    del sys.path[0]  # of this module's own start
    install()
    go_on_without_output(say_once)
    log_to_terminal()
    with exit_on_error():
        if sys.argv[1] == "-m":
            run_module(sys.argv[2], sys.argv[3:])
        else:
            run_script(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
