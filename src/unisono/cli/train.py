"""`unisono train`: from prepared data to a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from unisono.cli.completion import model_names, optimizers, strategies
from unisono.cli.options import Epochs, Sets, Verbose
from unisono.config import ObjectiveChoice, ValidationChoice, describe_keys, load
from unisono.fabric.local.background import process_start
from unisono.launch.exit_codes import exit_on_error
from unisono.launch.torchrun import train_as_rank
from unisono.learner.checkpoint_files import checkpoints
from unisono.learner.ranks import Rank
from unisono.runs.directory import RunDirectory
from unisono.runs.summary import Summary
from unisono.training import train as training
from unisono.training.display import show
from unisono.verbosity import log_to_terminal
from unisono.watch.server import serving


def _list_keys(wanted: bool) -> None:
    if wanted:
        table = Table("key", "default", "meaning", box=None, pad_edge=False)
        for row in describe_keys():
            table.add_row(*(Text(cell) for cell in row))
        show(table)
        raise typer.Exit()


def train(
    prep: Annotated[
        Path | None, typer.Argument(metavar="PREP", help="Prepared data; or `prep` of --config.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The run's directory; must not exist, unless --resume.")
    ] = Path("run"),
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Start from this run's model.", show_default="random parameters"
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How learners share what they learn; see below.",
            show_default="solo for 1 learner, else averaging",
            autocompletion=strategies,
        ),
    ] = None,
    learners: Annotated[
        str | None,
        typer.Option(
            help="Learners, one process each: N, or MIN:MAX on a cluster.", show_default="1"
        ),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes that hold the parameter server's shards and train nothing.",
            show_default="0: the learners hold them",
        ),
    ] = None,
    processes_per_learner: Annotated[
        int | None,
        typer.Option(
            metavar="P",
            help="Processes per learner; each computes a slice of every minibatch.",
            show_default="1",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="A Ray cluster: auto or ADDRESS.", show_default="this machine"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Acoustic model; see below.", show_default="dnn", autocompletion=model_names
        ),
    ] = None,
    objective: Annotated[
        ObjectiveChoice | None,
        typer.Option(
            help="What is learned: aligned states of frames; ctc: phones of utterances.",
            show_default="states",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="Optimizer; see below.", show_default="auto", autocompletion=optimizers),
    ] = None,
    epochs: Epochs = None,
    seed: Annotated[
        int | None,
        typer.Option(help="For parameters and the order of data.", show_default="0"),
    ] = None,
    validation: Annotated[
        ValidationChoice | None,
        typer.Option(help="none: train on held-out speakers, too.", show_default="heldout"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, such as another run's config.toml.")
    ] = None,
    sets: Sets = None,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="List all keys and exit.", callback=_list_keys, is_eager=True),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the run's newest complete checkpoint.")
    ] = False,
    respawn: Annotated[
        bool | None,
        typer.Option(
            "--respawn/--no-respawn", help="Replace learners that die.", show_default="yes"
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the run in the browser while it runs.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Train a model on prepared data, with any number of learners and any strategy."""
    log_to_terminal(verbose=verbose)
    rank = Rank.from_environment()
    flags = {
        "prep": None if prep is None else str(prep.resolve()),
        "init": None if init is None else str(init.resolve()),
        "strategy.name": strategy,
        "learners": learners if rank is None else learners or str(rank.count),
        "servers": servers,
        "processes_per_learner": processes_per_learner,
        "cluster": cluster,
        "model": model,
        "objective": None if objective is None else objective.value,
        "optimizer": optimizer,
        "epochs": epochs,
        "seed": seed,
        "respawn": respawn,
        "validation.on": None if validation is None else validation.value,
    }
    file = out / "config.toml" if resume and config is None and out.exists() else config
    settings = load(file, sets or [], flags)
    if resume and not settings.prep:
        RunDirectory.open(out)
    is_first = rank is None or rank.number == 0
    try:
        with _live_page(out) if watch and is_first else nullcontext():
            if rank is None:
                summary: Summary | None = training.train(
                    settings, out, resume=resume, began=process_start(), forks=True
                )
            else:
                with exit_on_error():
                    summary = train_as_rank(rank, settings, out, resume=resume)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_way_on(out)) from None
    if summary is None:
        return
    for line in summary.lines():
        typer.echo(line)
    typer.echo(f"report: {out / 'report.html'}")


@contextmanager
def _live_page(out: Path) -> Iterator[None]:
    """Serves the run's page on a free local port while the run lasts."""
    with serving(RunDirectory(out)) as (_, url):
        typer.echo(f"watch at {url}")
        yield


def _way_on(out: Path) -> str:
    """What to do after an interruption."""
    if checkpoints(RunDirectory(out).checkpoints):
        return f"go on from its newest checkpoint with: unisono train --resume --out {out}"
    return f"there is no checkpoint yet: remove {out}, or go on with --resume from the start"
