"""`unisono compare`: the same job once a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.cli.completion import strategy_lists
from unisono.cli.options import Epochs, Seeds, Sets
from unisono.training import compare as training
from unisono.training.compare_variants import plan_comparison


def compare(
    prep: Annotated[Path, typer.Argument(metavar="PREP", help="Prepared data.")],
    strategies: Annotated[
        str,
        typer.Option(
            help="Strategies, commas between them, options behind colons: "
            "allreduce,averaging:sharding=static. solo is always there, with one learner.",
            autocompletion=strategy_lists,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The comparison's directory; what is done in it stays done.")
    ],
    learners: Annotated[int, typer.Option(help="Learners of each but solo.", min=1)] = 2,
    rates: Annotated[
        str,
        typer.Option(help="Learning rates to try, as multiples of what each strategy's rule says."),
    ] = "0.5,1,2",
    seeds: Seeds = 1,
    jobs: Annotated[
        int, typer.Option(help="Runs at a time; times mean little with more than 1.", min=1)
    ] = 1,
    solo_optimizers: Annotated[
        str,
        typer.Option(help="Optimizers of solo: the best of them is what the others are against."),
    ] = "sgd,ng-sgd",
    test: Annotated[
        Path | None, typer.Option(help="A corpus, as for prepare, to decode with each chosen run.")
    ] = None,
    epochs: Epochs = None,
    sets: Sets = None,
) -> None:
    """Train with each strategy, rate and seed; table, compare.json and report.html."""
    plan = plan_comparison(
        prep=prep.resolve(),
        strategies=strategies,
        learners=learners,
        rates=rates,
        seeds=seeds,
        epochs=epochs,
        sets=sets or [],
        solo_optimizers=solo_optimizers,
    )
    comparison = training.Compare(
        plan=plan,
        out=out,
        say=typer.echo,
        at_a_time=jobs,
        test=None if test is None else test.resolve(),
    ).run()
    for line in comparison.lines():
        typer.echo(line)
    typer.echo(f"report: {out / 'report.html'}")
    comparison.complain()
