"""`unisono simulate`: strategies on a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.cli.completion import strategy_lists
from unisono.cli.options import Epochs, Seeds, Sets
from unisono.errors import UserError
from unisono.simulation.hosts import read_hosts
from unisono.training.cluster_timing import Load, load_of
from unisono.training.recommend import PLAN_STRATEGIES
from unisono.training.recommendation_text import recommend
from unisono.training.simulate import Simulate
from unisono.training.simulate_timing import SimulateTiming
from unisono.training.simulation_plan import Simulation, plan_simulation, read_slow, sizes_of


def simulate(
    out: Annotated[
        Path,
        typer.Option(help="The simulation's directory; runs completed in it are kept."),
    ],
    prep: Annotated[
        Path | None, typer.Argument(metavar="PREP", help="Prepared data; --timing can do without.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Strategies, separated by commas, with options after colons: "
            "allreduce,averaging:sharding=static. solo is always added, with one learner.",
            show_default="with --plan: the likely ones",
            autocompletion=strategy_lists,
        ),
    ] = None,
    learners: Annotated[
        int | None,
        typer.Option(help="Learners of all but solo.", min=1, show_default="all of --hosts"),
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file of machines, links and costs.",
            show_default="one host like this machine, with one core per learner",
        ),
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(metavar="LEARNER=FACTOR", help="A learner and how much slower it is."),
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="A real run on one machine to take the cost of minibatches and rounds from.",
            show_default="measured now",
        ),
    ] = None,
    timing: Annotated[
        bool, typer.Option("--timing", help="Only simulate time: nothing is computed or learned.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Recommend strategy, pace and number of learners for --hosts: simulated time, "
            "and examples needed as in docs/evidence.md.",
        ),
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(
            help="With --plan: how long training may take, with the fewest learners that suffice.",
            min=0.001,
            show_default="as short as possible",
        ),
    ] = None,
    minibatches: Annotated[
        int | None,
        typer.Option(
            help="Minibatches of an epoch, with --timing or --plan.",
            min=1,
            show_default="those of PREP, or of [training] in --hosts",
        ),
    ] = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            help="Parameters of the model, with --timing or --plan.",
            min=1,
            show_default="by --set, or of [training] in --hosts",
        ),
    ] = None,
    seeds: Seeds = 1,
    epochs: Epochs = None,
    sets: Sets = None,
) -> None:
    """Train with each strategy on a virtual clock, with real gradients; table and report.html."""
    if strategies is None and not plan:
        raise UserError("which strategies? Give --strategies a,b, or --plan for a recommendation")
    if hours is not None and not plan:
        raise UserError("--hours is for --plan")
    if plan and (hosts is None or timing or slow or learners):
        raise UserError(
            "--plan goes with --hosts FILE.toml, and without --timing, --slow and --learners: it "
            "tries numbers of learners itself; a slow machine has a lower speed in the file"
        )
    cluster = None if hosts is None else read_hosts(hosts)
    count = learners or (None if cluster is None else cluster.learners)
    if count is None:
        raise UserError("how many learners? Give --learners N, or --hosts FILE.toml")
    if cluster is not None and count != cluster.learners:
        raise UserError(f"--learners {count}, but {hosts} has {cluster.learners}: leave it out")
    resolved = None if prep is None else prep.resolve()
    named = PLAN_STRATEGIES if strategies is None else strategies
    sizes = sizes_of(None if prep is not None else cluster)
    simulation = Simulation(
        plan=plan_simulation(resolved, named, count, seeds, epochs, [*sizes, *(sets or [])]),
        out=out,
        hosts=cluster,
        slow=read_slow(slow or [], count),
        say=typer.echo,
        runs=calibrate or [],
    )
    if plan:
        lines = recommend(simulation, _load(simulation, minibatches, parameters), hours)
    elif timing:
        lines = SimulateTiming(simulation, _load(simulation, minibatches, parameters)).run()
    elif prep is None:
        raise UserError("what to train on? Give PREP, or --timing with --minibatches N")
    elif minibatches is not None or parameters is not None:
        raise UserError("--minibatches and --parameters are for --timing and --plan")
    else:
        lines = Simulate(simulation).run()
    for line in lines:
        typer.echo(line)
    if not timing and not plan:
        typer.echo(f"report: {out / 'report.html'}")


def _load(simulation: Simulation, minibatches: int | None, parameters: int | None) -> Load:
    if minibatches is not None and parameters is not None:
        return Load(minibatches, parameters)
    hosts = simulation.hosts
    found = load_of(simulation.plan.base, None if hosts is None else hosts.training)
    return Load(minibatches or found.minibatches, parameters or found.parameters)
