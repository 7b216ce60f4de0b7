"""`unisono synthesize`: speech made on the spot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from unisono.speech.synthesis.synthesize import SynthesisOptions
from unisono.speech.synthesis.synthesize import synthesize as make


def synthesize(
    out: Annotated[Path, typer.Option(help="Takes train, test and lexicon.txt; must not exist.")],
    hours: Annotated[float, typer.Option(help="Speech to train on, in hours.", min=0.001)] = 1.0,
    test_hours: Annotated[
        float, typer.Option(help="Speech to test on, by other voices, in hours.", min=0.001)
    ] = 0.1,
    snr: Annotated[
        tuple[float, float],
        typer.Option(metavar="LOW HIGH", help="Speech to noise in dB, drawn between these."),
    ] = (10.0, 30.0),
    rate: Annotated[int, typer.Option(help="Sample rate in Hz.", min=8000, max=48000)] = 16000,
    seed: Annotated[int, typer.Option(help="Of voices, words and noise.", min=0)] = 0,
    processes: Annotated[int, typer.Option(help="Processes at a time; 0: one a core.", min=0)] = 0,
) -> None:
    """Let espeak-ng say digits and short commands in many voices, as Kaldi data directories."""
    how = SynthesisOptions(
        hours=hours,
        test_hours=test_hours,
        snr=snr,
        rate=rate,
        seed=seed,
        processes=processes or os.cpu_count() or 1,
    )
    make(out, how, typer.echo)
    lexicon = out / "lexicon.txt"
    typer.echo(f"now: unisono prepare {out / 'train'} --lexicon {lexicon} --out PREP")
