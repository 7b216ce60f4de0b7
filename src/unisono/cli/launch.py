"""`unisono launch`: a user's own script on several learners."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.errors import UserError
from unisono.launch.script import launch_script


def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.PY", help="Your own training script.")],
    learners: Annotated[
        str, typer.Option(help="Learners, a process each: N, or MIN:MAX on a cluster.")
    ] = "2",
    cluster: Annotated[
        str, typer.Option(help="A Ray cluster: auto or ADDRESS.  [default: this machine]")
    ] = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds a silent learner is believed to live.")
    ] = 10.0,
    threads: Annotated[int, typer.Option(help="Cores a learner; 0: cores // learners.")] = 0,
    respawn: Annotated[
        bool, typer.Option("--respawn/--no-respawn", help="Replace learners that die.")
    ] = True,
) -> None:
    """Run a script with `unisono.Learner` in it on several learners, which live and die alone."""
    outcome = launch_script(
        script,
        tuple(context.args),
        learners=learners,
        cluster=cluster,
        timeout=timeout,
        threads=threads,
        respawn=respawn,
    )
    if outcome.failed:
        raise UserError(outcome.reason)
