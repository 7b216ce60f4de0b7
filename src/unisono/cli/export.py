"""`unisono export`: a run's model, or prepared data, for other programs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from unisono.data import Prep
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.speech.export import export as write_archives
from unisono.speech.export_cuts import CUTS_FILE, export_cuts
from unisono.training.export_model import ModelFormat, export_model, priors_beside


class Format(str, Enum):
    """What a model or prepared data can be written as."""

    ONNX = ModelFormat.ONNX.value
    TORCH = ModelFormat.TORCH.value
    KALDI_NNET3 = ModelFormat.KALDI_NNET3.value
    KALDI = "kaldi"
    LHOTSE = "lhotse"


def export(
    place: Annotated[
        Path, typer.Argument(metavar="RUN|PREP", help="A run that has ended, or prepared data.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The model's file (kaldi-nnet3: and FILE.priors beside it); or, of prepared data, "
            "the folder for feats and ali, .ark and .scp, and utt2spk (lhotse: for cuts.jsonl.gz "
            "and its arrays). It must not exist."
        ),
    ],
    to: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Of a model: onnx, torch or kaldi-nnet3; of prepared data: kaldi or lhotse.",
            show_default="onnx, kaldi",
        ),
    ] = None,
) -> None:
    """Write a run's model, or prepared data, for other programs."""
    if not place.exists():
        raise UserError(f"{place} does not exist: give a run that has ended, or prepared data")
    is_run = (place / "config.toml").is_file()
    if is_run and to in (Format.KALDI, Format.LHOTSE):
        raise UserError(f"{place} is a run: {to.value} is a format of prepared data, give a PREP")
    if is_run:
        _export_model(place, out, ModelFormat.ONNX if to is None else ModelFormat(to.value))
        return
    if to not in (None, Format.KALDI, Format.LHOTSE):
        raise UserError(f"{place} is no run: only a run has a model to write as {to.value}")
    _export_data(Prep.open(place), out, to or Format.KALDI)


def _export_model(run: Path, out: Path, to: ModelFormat) -> None:
    difference, frames = export_model(RunDirectory.open(run), out, to)
    typer.echo(
        f"{out}: frames (T x D, normalised by speaker) to log posteriors; on {frames:,} frames "
        f"it differs from the run's network by at most {difference:.1e}"
    )
    if to is ModelFormat.KALDI_NNET3:
        typer.echo(f"{priors_beside(out)}: priors of the states")


def _export_data(prep: Prep, out: Path, to: Format) -> None:
    if to is Format.LHOTSE:
        with_audio = export_cuts(prep, out)
        written = f"{out / CUTS_FILE}, {with_audio} of them with audio"
    else:
        write_archives(prep, out)
        names = ["feats.scp", *(["ali.scp"] if prep.header.states else [])]
        written = ", ".join(str(out / name) for name in names)
    typer.echo(f"{prep.header.utterances} utterances: {written}")
