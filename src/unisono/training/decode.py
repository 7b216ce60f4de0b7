"""``unisono decode``: from speech and a trained model to words and their score."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.errors import UserError
from unisono.runs.directory import write_atomically
from unisono.speech.corpus.data_directory import no_usable_utterance
from unisono.speech.corpus.exclusions import EXCLUDED_FILE
from unisono.speech.decoding.assets import DecodingAssets
from unisono.speech.decoding.decoder import Decoder, Words
from unisono.speech.decoding.scoring import Score, score
from unisono.speech.decoding.tuning import TunedSettings, tune
from unisono.speech.dependencies import import_package
from unisono.speech.features.extraction import (
    extract_features,
)
from unisono.speech.features.extractors import FeatureType
from unisono.speech.features.kaldi_archives import KaldiFeatureReader
from unisono.speech.graph.decoding_graph import GraphInputs, build_graph, cached_graph
from unisono.speech.graph.language_model import NgramModel, read_language_model
from unisono.speech.prepare import scratch_directory
from unisono.speech.validation import InputOptions, validate_data
from unisono.training.acoustic_scorer import AcousticScorer

Frames = NDArray[np.float32]
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """How to decode.

    Attributes:
        inputs: Which audio is accepted; the rate is the model's.
        language_model: An ARPA file instead of the language model that was prepared.
        order: Use n-grams up to this length only; 0: all.
        like: A folder that was made by decoding: its scale and penalty are used, none is tuned.
        processes: How many work at a time.
    """

    inputs: InputOptions = field(default_factory=InputOptions)
    language_model: Path | None = None
    order: int = 0
    like: Path | None = None
    processes: int = 1


def decode(place: Path, data: Path, out: Path, options: DecodeOptions, log: Log) -> Score | None:
    """Decodes; writes hyp.txt, score.json, and with transcripts errors.txt.

    Args:
        place: A run, or a PREP to decode with its Gaussians.
        data: A Kaldi data directory; scored where it has a text.
        out: The folder to make.
        options: The settings.
        log: Receives progress lines.

    Returns:
        The score, where there are transcripts.

    Raises:
        UserError: Something cannot be read, or `out` exists.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; name another --out")
    for name in ("soundfile", "kaldifst", "kaldi_decoder", "kaldialign"):
        import_package(name)  # a missing package is reported before the work, not after it
    with AcousticScorer(place, options.processes) as scorer, scratch_directory(out) as scratch:
        return _decode(scorer, data, out, options, scratch, log)


def _decode(
    scorer: AcousticScorer, data: Path, out: Path, options: DecodeOptions, scratch: Path, log: Log
) -> Score | None:
    assets = scorer.assets
    language_model, tuning_language_model = _language_models(assets, options, log)
    validated = validate_data(
        data,
        replace(options.inputs, rate=assets.rate),
        None,
        archives=assets.features is FeatureType.KALDI,
        expected=KaldiFeatureReader(dimension=assets.dimension, bands=assets.bands),
    )
    log(f"{len(validated.utterances)} utterances to decode with the {scorer.name}")
    extracted = extract_features(
        validated.utterances,
        validated.reader,
        assets.features,
        validated.exclusions,
        processes=options.processes,
        log=log,
        scratch=scratch,
    )
    for line in validated.exclusions.summary():
        log(line)
    if not extracted:
        raise no_usable_utterance(data, validated.exclusions)
    settings = _tune(scorer, tuning_language_model, options, log)
    graph_inputs = _graph_inputs(assets, language_model)
    graph = cached_graph(graph_inputs, scorer.cache) if scorer.cache else build_graph(graph_inputs)
    log(f"graph: {len(graph.final)} states, {len(graph.source)} arcs")
    with Decoder(graph, graph_inputs.words, options.processes) as decoder:
        found = decoder.decode(scorer.log_likelihoods(extracted), settings.scale, settings.penalty)
    by_name = {u.id: words for (u, _), words in zip(extracted, found, strict=True)}
    facts: dict[str, JsonValue] = {
        "acoustic_scale": settings.scale,
        "word_insertion_penalty": settings.penalty,
        "tuning": {"errors": settings.errors, "words": settings.words, "tried": settings.tried},
        "lm_order": language_model.order,
        "model": scorer.name,
        "utterances": len(extracted),
        "excluded": len(validated.exclusions),
    }
    said = {u.id: u.words for u, _ in extracted if u.transcribed}
    result = None
    if said:
        result = score(said, by_name, {u.id: u.speaker for u, _ in extracted})
        facts = {**result.facts(), **facts}
    _write(out, by_name, facts, result)
    validated.exclusions.write(out / EXCLUDED_FILE)
    return result


def _language_models(
    assets: DecodingAssets, options: DecodeOptions, log: Log
) -> tuple[NgramModel, NgramModel]:
    """The language model to decode with, and the one to tune with."""
    both = assets.language_model, assets.tuning_language_model
    if options.language_model is not None:
        given = read_language_model(options.language_model, assets.lexicon.words, log)
        both = given, given
    if options.order:
        both = both[0].with_order(options.order), both[1].with_order(options.order)
    return both


def _graph_inputs(assets: DecodingAssets, language_model: NgramModel) -> GraphInputs:
    return GraphInputs(
        lexicon=assets.lexicon,
        language_model=language_model,
        topology=assets.gmm_hmm.topology,
        tying=assets.gmm_hmm.tying,
        silence=assets.gmm_hmm.silence,
    )


def _tune(
    scorer: AcousticScorer, language_model: NgramModel, options: DecodeOptions, log: Log
) -> TunedSettings:
    """Tunes on the held-out speakers; a run caches the result."""
    if options.like is not None:
        settings = _settings_of(options.like)
        log(
            f"scale {settings.scale:.3f}, word insertion penalty {settings.penalty:+.1f}, as in {options.like}"
        )
        return settings
    tuning_set = scorer.assets.tuning_set
    if tuning_set is None:
        settings = TunedSettings()
        default = f"scale {settings.scale:g} and penalty {settings.penalty:g} are not tuned"
        log(f"no speaker was held out: {default} (--like takes those of another decoding)")
        return settings
    graph_inputs = _graph_inputs(scorer.assets, language_model)
    memory: Path | None = None
    if scorer.cache is not None:
        key = f"{graph_inputs.fingerprint()}{scorer.fingerprint()}"
        memory = scorer.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        if memory.is_file():
            return TunedSettings(**json.loads(memory.read_text(encoding="utf-8")))
    log(f"tuning on {len(tuning_set.words)} utterances of held-out speakers")
    with Decoder(build_graph(graph_inputs), graph_inputs.words, options.processes) as decoder:
        settings = tune(decoder, scorer.score_tuning_set(), tuning_set.words, log)
    if memory is not None:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, json.dumps(asdict(settings)).encode())
    return settings


def _settings_of(result: Path) -> TunedSettings:
    """The settings that another decoding used."""
    file = result / "score.json"
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return TunedSettings(
            scale=float(facts["acoustic_scale"]), penalty=float(facts["word_insertion_penalty"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} has no scale and word insertion penalty ({reason})") from None


def _write(
    out: Path, found: dict[str, Words], facts: dict[str, JsonValue], result: Score | None
) -> None:
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot make {out}: {error.strerror}") from None
    lines = [" ".join([name, *words]) + "\n" for name, words in sorted(found.items())]
    write_atomically(out / "hyp.txt", "".join(lines).encode())
    write_atomically(out / "score.json", (json.dumps(facts, indent=1) + "\n").encode())
    if result is not None:
        write_atomically(out / "errors.txt", "\n".join(result.aligned).encode())
        write_atomically(out / "speakers.txt", "\n".join([*result.lines(), ""]).encode())
