"""`unisono export`: a run's model for other programs, or prepared data as Kaldi archives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.data import Prep
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.speech.export import export as write_archives
from unisono.training.export_model import ModelFormat, export_model, priors_beside


def export(
    place: Annotated[
        Path, typer.Argument(metavar="RUN|PREP", help="A run that has ended, or prepared data.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The model's file (kaldi-nnet3: and FILE.priors beside it); or, of prepared data, "
            "the folder for feats and ali, .ark and .scp, and utt2spk. It must not exist."
        ),
    ],
    to: Annotated[
        ModelFormat, typer.Option("--format", help="What a model is written as.")
    ] = ModelFormat.ONNX,
) -> None:
    """Write a run's model for other programs, or prepared data as Kaldi archives."""
    if (place / "config.toml").is_file():
        difference, frames = export_model(RunDirectory.open(place), out, to)
        typer.echo(
            f"{out}: frames (T x D, normalised by speaker) to log posteriors; on {frames:,} frames "
            f"it differs from the run's network by at most {difference:.1e}"
        )
        if to is ModelFormat.KALDI_NNET3:
            typer.echo(f"{priors_beside(out)}: priors of the states")
        return
    if to is not ModelFormat.ONNX:
        raise UserError(f"{place} is no run: only a run has a model to write as {to.value}")
    prep = Prep.open(place)
    write_archives(prep, out)
    names = ["feats.scp", *(["ali.scp"] if prep.header.states else [])]
    written = ", ".join(str(out / name) for name in names)
    typer.echo(f"{prep.header.utterances} utterances: {written}")
