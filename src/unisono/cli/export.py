"""`unisono export`: prepared data as Kaldi archives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.data import Prep
from unisono.speech.export import export as write


def export(
    prep: Annotated[Path, typer.Argument(metavar="PREP", help="Prepared data.")],
    out: Annotated[
        Path, typer.Option(help="Takes feats and ali, .ark and .scp, and utt2spk; must not exist.")
    ],
) -> None:
    """Write features and alignments of prepared data as Kaldi archives."""
    opened = Prep.open(prep)
    write(opened, out)
    typer.echo(f"{opened.header.utterances} utterances: {out / 'feats.scp'}, {out / 'ali.scp'}")
