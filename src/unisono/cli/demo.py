"""`unisono demo`: the whole way on made-up data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.training import demo as training


def demo(
    out: Annotated[Path, typer.Option(help="Where to put data and run; must not exist.")] = Path(
        "demo-run"
    ),
) -> None:
    """Make learnable frames on the spot, train 2 learners on them, and show what came out."""
    for line in training.demo(out, typer.echo):
        typer.echo(line)
