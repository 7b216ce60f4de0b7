"""`unisono simulate`: strategies on a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.errors import UserError
from unisono.simulation.hosts import read_hosts
from unisono.training.simulate import Simulate, plan_simulation, read_slow


def simulate(
    prep: Annotated[Path, typer.Argument(metavar="PREP", help="Prepared data.")],
    strategies: Annotated[
        str,
        typer.Option(
            help="Strategies, commas between them, options behind colons: "
            "allreduce,averaging:sharding=dynamic. solo is always there, with one learner."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The simulation's directory; what is done in it stays done.")
    ],
    learners: Annotated[
        int | None,
        typer.Option(help="Learners of each but solo.", min=1, show_default="all of --hosts"),
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file of machines, links and costs.",
            show_default="one host like this machine, with a core a learner",
        ),
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(metavar="LEARNER=FACTOR", help="A learner that computes so much slower."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds: each run is made so often.", min=1)] = 1,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.", show_default="3")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key, for all; `unisono train --keys` lists them.",
        ),
    ] = None,
) -> None:
    """Train with each strategy on a virtual clock, with real gradients; table and report.html."""
    cluster = None if hosts is None else read_hosts(hosts)
    count = learners or (None if cluster is None else cluster.learners)
    if count is None:
        raise UserError("how many learners? Give --learners N, or --hosts FILE.toml")
    if cluster is not None and count != cluster.learners:
        raise UserError(f"--learners {count}, but {hosts} has {cluster.learners}: leave it out")
    lines = Simulate(
        plan=plan_simulation(prep.resolve(), strategies, count, seeds, epochs, sets or []),
        out=out,
        hosts=cluster,
        slow=read_slow(slow or [], count),
        say=typer.echo,
    ).run()
    for line in lines:
        typer.echo(line)
    typer.echo(f"report: {out / 'report.html'}")
