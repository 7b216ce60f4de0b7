"""`unisono launch`: a user's own script on several learners."""

from __future__ import annotations

from typing import Annotated

import typer

from unisono.errors import UserError
from unisono.launch.script import launch_script
from unisono.verbosity import log_to_terminal


def launch(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT.PY", help="Your own training script, then its options.")
    ],
    learners: Annotated[
        str, typer.Option(help="Learners, a process each: N, or MIN:MAX on a cluster.")
    ] = "2",
    cluster: Annotated[
        str, typer.Option(help="A Ray cluster: auto or ADDRESS.", show_default="this machine")
    ] = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds a silent learner is believed to live.")
    ] = 10.0,
    threads: Annotated[int, typer.Option(help="Cores a learner; 0: cores // learners.")] = 0,
    respawn: Annotated[
        bool, typer.Option("--respawn/--no-respawn", help="Replace learners that die.")
    ] = True,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT.PY is the name of a module, as in `python -m`.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log what learners and coordinator do.")
    ] = False,
) -> None:
    """Run a script with `unisono.Learner` in it on several learners, which live and die alone."""
    log_to_terminal(verbose=verbose)
    try:
        outcome = launch_script(
            script,
            tuple(context.args),
            is_module=module,
            learners=learners,
            cluster=cluster,
            timeout=timeout,
            threads=threads,
            respawn=respawn,
        )
    except KeyboardInterrupt:
        hint = "a script with checkpoints= goes on from the newest one with resume=True"
        raise KeyboardInterrupt(hint) from None
    if outcome.failed:
        raise UserError(outcome.reason)
