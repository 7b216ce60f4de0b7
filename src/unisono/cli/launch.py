"""`unisono launch`: a user's own script on several learners."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unisono.events import UserError
from unisono.training.launch import Launch


def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.PY", help="Your own training script.")],
    learners: Annotated[int, typer.Option(help="Learners, a process each.", min=1)] = 2,
    timeout: Annotated[
        float, typer.Option(help="Seconds a silent learner is believed to live.")
    ] = 10.0,
    threads: Annotated[int, typer.Option(help="Cores a learner; 0: cores // learners.")] = 0,
) -> None:
    """Run a script with `unisono.Learner` in it on several learners of this machine."""
    if not script.is_file():
        raise UserError(f"there is no script {script}")
    command = [sys.executable, "-m", "unisono.training.script", str(script), *context.args]
    outcome = Launch(command=command, learners=learners, timeout=timeout, threads=threads).run()
    if outcome.failed:
        raise UserError(outcome.reason)
