"""`unisono train`: from prepared data to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.config import ValidationChoice, load
from unisono.fabric.local.background import process_start
from unisono.launch.exit_codes import exit_on_error
from unisono.launch.torchrun import Rank, train_as_rank
from unisono.runs.summary import Summary
from unisono.training import train as training


def train(
    prep: Annotated[
        Path | None, typer.Argument(metavar="PREP", help="Prepared data; or `prep` of --config.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The run's directory; must not exist, unless --resume.")
    ] = Path("run"),
    strategy: Annotated[
        str | None,
        typer.Option(help="How learners agree.  [default: solo for 1 learner, else averaging]"),
    ] = None,
    learners: Annotated[str | None, typer.Option(help="Learners.  [default: 1]")] = None,
    cluster: Annotated[str | None, typer.Option(help="A Ray cluster: auto or ADDRESS.")] = None,
    model: Annotated[
        str | None, typer.Option(help="dnn, tdnn, lstm or blstm.  [default: dnn]")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, ng-sgd or adamw.  [default: sgd]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [default: 3]")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of parameters and order of data.  [default: 0]")
    ] = None,
    validation: Annotated[
        ValidationChoice | None,
        typer.Option(help="none: train on held-out speakers, too.  [default: heldout]"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, such as another run's config.toml.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any configuration key.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's newest whole checkpoint.")
    ] = False,
    respawn: Annotated[
        bool | None,
        typer.Option("--respawn/--no-respawn", help="Replace learners that die.  [default: yes]"),
    ] = None,
) -> None:
    """Train a model on prepared data, with any number of learners and any strategy."""
    rank = Rank.from_environment()
    flags = {
        "prep": None if prep is None else str(prep.resolve()),
        "strategy.name": strategy,
        "learners": learners if rank is None else learners or str(rank.count),
        "cluster": cluster,
        "model": model,
        "optimizer": optimizer,
        "epochs": epochs,
        "seed": seed,
        "respawn": respawn,
        "validation.on": None if validation is None else validation.value,
    }
    file = out / "config.toml" if resume and config is None and out.exists() else config
    settings = load(file, sets or [], flags)
    if rank is None:
        summary: Summary | None = training.train(
            settings, out, resume=resume, began=process_start()
        )
    else:
        with exit_on_error():
            summary = train_as_rank(rank, settings, out, resume=resume)
    if summary is None:
        return
    for line in summary.lines():
        typer.echo(line)
    typer.echo(f"report: {out / 'report.html'}")
