"""`unisono prepare`: data made elsewhere into prepared data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.data import Part, convert_frames


def prepare(
    frames: Annotated[
        Path, typer.Option(help="Frames and states made elsewhere: a .npz (docs/prep.md).")
    ],
    out: Annotated[Path, typer.Option(help="The prepared data; must not exist.")],
    heldout: Annotated[
        float, typer.Option(help="Share of the training speakers to hold out.", min=0.0, max=0.9)
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the choice of held-out speakers.")] = 0,
) -> None:
    """Convert frames and states to prepared data that `unisono train` reads."""
    prep = convert_frames(frames, out, heldout_share=heldout, seed=seed)
    for part in Part:
        typer.echo(f"{part.value:8} {prep.frames_of(part):9} frames")
    typer.echo(f"states   {prep.header.states:9}")
    typer.echo(f"wrote {out}; now: unisono train {out} --out RUN")
