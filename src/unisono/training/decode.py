"""``unisono decode``: from speech and a trained model to words and their score."""

from __future__ import annotations

import hashlib
import json
import os
import time
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
from unisono.speech.decoding.decoder import BEAM, MAX_ACTIVE, Decoder, Words
from unisono.speech.decoding.progress import DecodingProgress
from unisono.speech.decoding.scoring import Score, score
from unisono.speech.decoding.tuning import CTC_SCALE, DEFAULT_SCALE, TunedSettings, tune
from unisono.speech.dependencies import import_package
from unisono.speech.features.extraction import (
    extract_features,
)
from unisono.speech.features.extractors import FeatureType
from unisono.speech.features.kaldi_archives import KaldiFeatureReader
from unisono.speech.features.spectrum import SHIFT_S
from unisono.speech.graph.decoding_graph import cached_graph
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
        data: A corpus, as for `prepare`; scored where it has transcripts.
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
    begun = time.process_time()
    settings, tuning_cpu_s = tuned_settings(scorer, tuning_language_model, options, log)
    graph_inputs = scorer.graph_inputs(language_model)
    graph = cached_graph(graph_inputs, scorer.cache) if scorer.cache else graph_inputs.build()
    log(f"graph: {len(graph.final)} states, {len(graph.source)} arcs")
    with Decoder(graph, graph_inputs.words, options.processes) as decoder:
        lengths = [len(features.network) for _, features in extracted]
        scored_before = scorer.worker_cpu_s
        progress = DecodingProgress(
            "decoding",
            lengths,
            worker_cpu_s=lambda: decoder.worker_cpu_s + scorer.worker_cpu_s - scored_before,
            processes=options.processes,
            log=log,
        )
        found = {}
        loglikes = scorer.log_likelihoods(extracted)
        hypotheses = decoder.decode(loglikes, settings.scale, settings.penalty)
        for (utterance, _), hypothesis in zip(extracted, hypotheses, strict=True):
            found[utterance.id] = hypothesis.words
            progress.advance()
        factor = progress.real_time_factor
        cpu_s = time.process_time() - begun + tuning_cpu_s
        cpu_s += scorer.worker_cpu_s + decoder.worker_cpu_s
    whole = cpu_s / (sum(lengths) * SHIFT_S)
    log(
        f"decoded {sum(lengths) * SHIFT_S / 3600:.2f} h at {factor:.2f} times real time a core, "
        f"{whole:.2f} with graphs and tuning (beam {BEAM:g}, at most {MAX_ACTIVE} active states)"
    )
    facts: dict[str, JsonValue] = {
        "acoustic_scale": settings.scale,
        "word_insertion_penalty": settings.penalty,
        "tuning": {"errors": settings.errors, "words": settings.words, "tried": settings.tried},
        "beam": BEAM,
        "max_active": MAX_ACTIVE,
        "real_time_factor": round(factor, 4),
        "real_time_factor_with_tuning": round(whole, 4),
        "lm_order": language_model.order,
        "model": scorer.name,
        "utterances": len(extracted),
        "excluded": len(validated.exclusions),
    }
    references = {u.id: u.words for u, _ in extracted if u.transcribed}
    result = None
    if references:
        result = score(references, found, {u.id: u.speaker for u, _ in extracted})
        facts = {**result.facts(), **facts}
    _write(out, found, facts, result)
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


def tuned_settings(
    scorer: AcousticScorer, language_model: NgramModel, options: DecodeOptions, log: Log
) -> tuple[TunedSettings, float]:
    """Acoustic scale and penalty, tuned on the held-out speakers; a run caches the result.

    Returns:
        The settings, and the CPU seconds that worker processes searched for them.
    """
    if options.like is not None:
        settings = _settings_of(options.like)
        log(f"{_described(settings)}, as in {options.like}")
        return settings, 0.0
    tuning_set = scorer.assets.tuning_set
    first = CTC_SCALE if scorer.is_ctc else DEFAULT_SCALE
    if tuning_set is None:
        settings = TunedSettings(scale=first)
        log(
            f"no speaker was held out: {_described(settings)} are not tuned "
            "(--like takes those of another decoding)"
        )
        return settings, 0.0
    graph_inputs = scorer.graph_inputs(language_model)
    cached: Path | None = None
    if scorer.cache is not None:
        key = f"{graph_inputs.fingerprint()}{scorer.fingerprint()}"
        cached = scorer.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        if cached.is_file():
            settings = TunedSettings(**json.loads(cached.read_text(encoding="utf-8")))
            log(f"{_described(settings)}, as tuned before")
            return settings, 0.0
    log(f"tuning on {len(tuning_set.words)} utterances of held-out speakers")
    # Recognised or not, an unknown word is an error, as it is when the result is scored.
    unknown = scorer.assets.lexicon.unknown_word
    references = [tuple("" if w == unknown else w for w in words) for words in tuning_set.words]
    with Decoder(graph_inputs.build(), graph_inputs.words, options.processes) as decoder:
        settings = tune(decoder, scorer.score_tuning_set(), references, log, first)
        cpu_s = decoder.worker_cpu_s
    log(
        f"{_described(settings)}: {settings.errors} errors in {settings.words} words of held-out "
        f"speakers, the fewest of {settings.tried} settings"
    )
    if cached is not None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, json.dumps(asdict(settings)).encode())
    return settings, cpu_s


def _described(settings: TunedSettings) -> str:
    return f"acoustic scale {settings.scale:.3f}, word insertion penalty {settings.penalty:+.1f}"


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
