"""`unisono launch`: a user's own script on several learners."""

from __future__ import annotations

from typing import Annotated

import typer

from unisono.cli.options import Verbose
from unisono.errors import UserError
from unisono.launch.script import launch_script
from unisono.verbosity import log_to_terminal


def launch(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT.PY", help="Your own training script, then its options.")
    ],
    learners: Annotated[str, typer.Option(help="Learners: N, or MIN:MAX on a cluster.")] = "2",
    processes_per_learner: Annotated[
        int,
        typer.Option(
            metavar="P", help="Processes per learner; each computes a slice of every minibatch."
        ),
    ] = 1,
    cluster: Annotated[
        str, typer.Option(help="A Ray cluster: auto or ADDRESS.", show_default="this machine")
    ] = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent learner is declared dead.")
    ] = 10.0,
    threads: Annotated[int, typer.Option(help="Cores per process; 0: cores // processes.")] = 0,
    respawn: Annotated[
        bool, typer.Option("--respawn/--no-respawn", help="Replace learners that die.")
    ] = True,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT.PY is the name of a module, as in `python -m`.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Run a script that uses `unisono.Learner` on several learners, which fail independently."""
    log_to_terminal(verbose=verbose)
    try:
        outcome = launch_script(
            script,
            tuple(context.args),
            is_module=module,
            learners=learners,
            processes=processes_per_learner,
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
