"""`unisono prepare`: speech, or frames made elsewhere, into prepared data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from unisono.data import Part, Prep, convert_frames
from unisono.errors import UserError
from unisono.speech.corpus.lexicon import Oov
from unisono.speech.features.extractors import FeatureType
from unisono.speech.prepare import PrepareOptions, TyingMethod
from unisono.speech.prepare import prepare as prepare_speech
from unisono.speech.prepare_aligned import prepare_aligned
from unisono.speech.validation import InputOptions


def prepare(
    out: Annotated[Path, typer.Option(help="The prepared data; must not exist.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="A Kaldi data directory, lhotse cuts (.jsonl.gz) or an audio folder.",
        ),
    ] = None,
    lexicon: Annotated[
        Path | None, typer.Option(help="Lines of a word and its phones; DATA needs it.")
    ] = None,
    frames: Annotated[
        Path | None, typer.Option(help="Instead of DATA: frames and states made elsewhere, a .npz.")
    ] = None,
    features: Annotated[
        FeatureType, typer.Option(help="Input features of the network; kaldi: those of feats.scp.")
    ] = FeatureType.FBANK,
    alignments: Annotated[
        Path | None,
        typer.Option(
            help="Imported alignments, a state a frame: Kaldi .scp or archive; no lexicon."
        ),
    ] = None,
    no_alignment: Annotated[
        bool, typer.Option("--no-alignment", help="Do not align: for `train --objective ctc` only.")
    ] = False,
    lm: Annotated[
        Path | None, typer.Option(help="An ARPA language model.", show_default="of the text")
    ] = None,
    order: Annotated[
        int, typer.Option(help="Length of the n-grams of the text, in words.", min=1, max=5)
    ] = 2,
    heldout: Annotated[
        float, typer.Option(help="Share of the training speakers to hold out.", min=0.0, max=0.9)
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Of held-out speakers and the model.", min=0)] = 0,
    oov: Annotated[
        Oov,
        typer.Option(
            help="Out-of-vocabulary words: map to <unk>, a spoken-noise phone; skip their "
            "utterances; or g2p: guess their pronunciations from the spelling."
        ),
    ] = Oov.MAP,
    rate: Annotated[int, typer.Option(help="Sample rate in Hz; 0: the commonest one.", min=0)] = 0,
    resample: Annotated[
        bool, typer.Option("--resample", help="Convert audio of other sample rates.")
    ] = False,
    channel: Annotated[int, typer.Option(help="Channel of the audio, from 0.", min=0)] = 0,
    allow_pipes: Annotated[
        bool, typer.Option("--allow-pipes", help="Run commands (pipes) that output audio.")
    ] = False,
    perturb: Annotated[
        bool, typer.Option("--perturb", help="Train at 0.9 and 1.1 times the speed, too.")
    ] = False,
    perturb_volume: Annotated[
        bool,
        typer.Option(
            "--perturb-volume", help="Change the volume of training utterances, 1/8 to 2 times."
        ),
    ] = False,
    tying: Annotated[
        TyingMethod,
        typer.Option(help="Monophone states, or states of triphones tied by a decision tree."),
    ] = TyingMethod.TREE,
    states: Annotated[int, typer.Option(help="Tied states, at most.", min=1)] = 1800,
    gaussians: Annotated[
        int, typer.Option(help="Gaussians, at most; 0: 1000, with a tree 9000.", min=0)
    ] = 0,
    processes: Annotated[int, typer.Option(help="Processes at a time; 0: one a core.", min=0)] = 0,
) -> None:
    """Align speech, or convert frames and states, to prepared data that `unisono train` reads."""
    if (data is None) == (frames is None):
        raise UserError("give either a corpus, DATA, or --frames FILE.npz")
    if frames is not None:
        prep = convert_frames(frames, out, heldout_share=heldout, seed=seed)
    else:
        assert data is not None
        if lexicon is None and alignments is None:
            raise UserError("a corpus needs --lexicon FILE, or --alignments FILE instead")
        if lexicon is not None and alignments is not None:
            raise UserError("--alignments has the states already: leave --lexicon out, or it")
        if alignments is not None and no_alignment:
            raise UserError("--alignments and --no-alignment exclude each other: leave one out")
        inputs = InputOptions(
            rate=rate, channel=channel, resample=resample, allow_pipes=allow_pipes, oov=oov
        )
        how = PrepareOptions(
            features=features,
            inputs=inputs,
            align=not no_alignment,
            tying=tying,
            states=states,
            gaussians=gaussians,
            language_model=lm,
            order=order,
            perturb=perturb,
            volume=perturb_volume,
            heldout=heldout,
            seed=seed,
            processes=processes or os.cpu_count() or 1,
        )
        if alignments is not None:
            prep = prepare_aligned(data, alignments, out, how, typer.echo)
        else:
            assert lexicon is not None
            prep = prepare_speech(data, lexicon, out, how, typer.echo)
    _tell(prep, out)


def _tell(prep: Prep, out: Path) -> None:
    for part in Part:
        typer.echo(f"{part.value:8} {prep.frames_of(part):9} frames")
    aligned = prep.header.states > 0
    if aligned:
        typer.echo(f"states   {prep.header.states:9}")
    else:
        typer.echo(f"phones   {prep.header.phones:9}")
    how = "" if aligned else " --objective ctc"
    typer.echo(f"wrote {out}; now: unisono train {out}{how} --out RUN")
