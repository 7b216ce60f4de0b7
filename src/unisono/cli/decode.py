"""`unisono decode`: from a model and speech to words and their score."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from unisono.speech.validation import InputOptions
from unisono.training import decode as training


def decode(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run; or a PREP, for its GMMs.")],
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A corpus, as for prepare; scored if it has text."),
    ],
    out: Annotated[Path, typer.Option(help="Takes hyp.txt and score.json; must not exist.")],
    lm: Annotated[
        Path | None, typer.Option(help="An ARPA language model.", show_default="the prepared one")
    ] = None,
    order: Annotated[int, typer.Option(help="Longest n-grams used, in words; 0: all.", min=0)] = 0,
    like: Annotated[
        Path | None,
        typer.Option(help="Acoustic scale and word insertion penalty of this earlier result."),
    ] = None,
    resample: Annotated[
        bool, typer.Option("--resample", help="Convert audio of other sample rates.")
    ] = False,
    channel: Annotated[int, typer.Option(help="Channel of the audio, from 0.", min=0)] = 0,
    allow_pipes: Annotated[
        bool, typer.Option("--allow-pipes", help="Run commands (pipes) that output audio.")
    ] = False,
    processes: Annotated[int, typer.Option(help="Processes at a time; 0: one a core.", min=0)] = 0,
) -> None:
    """Recognise speech; scale and word insertion penalty are tuned on held-out speakers."""
    how = training.DecodeOptions(
        inputs=InputOptions(resample=resample, channel=channel, allow_pipes=allow_pipes),
        language_model=lm,
        order=order,
        like=like,
        processes=processes or os.cpu_count() or 1,
    )
    score = training.decode(run, data, out, how, typer.echo)
    for line in score.lines() if score is not None else ["no transcripts: nothing to score"]:
        typer.echo(line)
    typer.echo(f"words: {out / 'hyp.txt'}; figures: {out / 'score.json'}")
