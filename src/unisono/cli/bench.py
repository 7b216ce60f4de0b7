"""`unisono bench`: how fast each strategy is on this machine, as ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.training.bench import Bench


def bench(
    learners: Annotated[int, typer.Option(help="Learners, a process each.", min=1)] = 2,
    slow: Annotated[
        float, typer.Option(help="Learner 0 computes so many times as much a step.", min=1.0)
    ] = 1.0,
    json: Annotated[Path | None, typer.Option(help="Write the rows as JSON.")] = None,
    seconds: Annotated[
        float, typer.Option(help="Seconds that each is timed in one turn.", min=0.5)
    ] = 3.0,
    turns: Annotated[int, typer.Option(help="Turns: all are timed once in each.", min=1)] = 7,
) -> None:
    """Time a bare loop, independent processes, DDP, PostLocalSGD and every strategy, in turns."""
    for line in Bench(
        learners=learners, slow=slow, seconds=seconds, turns=turns, json=json, say=typer.echo
    ).run():
        typer.echo(line)
