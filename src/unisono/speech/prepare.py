"""From a corpus to a PREP: features, and the aligned state of each frame."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.data import Corpus, Part, Prep, hold_out, write_prep
from unisono.errors import UserError
from unisono.speech.alignment.trainer import Alignment, AlignmentData, GmmHmm, Trainer
from unisono.speech.alignment.transcript_graph import Ints
from unisono.speech.alignment.word_times import word_times
from unisono.speech.corpus.data_directory import Utterance, no_usable_utterance
from unisono.speech.corpus.exclusions import EXCLUDED_FILE, ExclusionReason
from unisono.speech.corpus.lexicon import SILENCE, Lexicon
from unisono.speech.corpus.sources import SOURCES_FILE, sources_text
from unisono.speech.decoding.assets import ASSETS_FOLDER, DecodingAssets, select_tuning_set
from unisono.speech.features.audio import AudioReader
from unisono.speech.features.extraction import UtteranceFeatures, extract_features
from unisono.speech.features.extractors import FeatureType
from unisono.speech.features.frame_store import concatenate_to_file
from unisono.speech.features.kaldi_archives import KaldiFeatureReader
from unisono.speech.features.normalization import DELTA_FACTOR, cepstral_cmvn_stats, gmm_features
from unisono.speech.features.spectrum import SHIFT_S, frame_shift
from unisono.speech.graph.language_model import NgramModel, estimate_ngrams, read_language_model
from unisono.speech.validation import InputOptions, ValidatedCorpus, alignable, validate_data

WORD_TIMES_FILE = "words.ctm"
"""The file of a PREP with the time of each word."""
Log = Callable[[str], None]
# Numbers below it keep three digits in half precision.
_MAX_HALF = 1000
_SHOWN = 10
_SPEEDS = (0.9, 1.1)
_VOLUMES = (0.125, 2.0)
_MONOPHONE_GAUSSIANS = 1000
_GAUSSIANS_A_PHONE = 12
_TRIPHONE_GAUSSIANS = 9000


class TyingMethod(str, Enum):
    """How states of phones in context are tied."""

    NONE = "none"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """How a corpus is prepared.

    Attributes:
        features: The network's features.
        inputs: Which audio and which words are accepted.
        align: Align; else the PREP has no states, and networks are trained with CTC.
        tying: How states are tied.
        states: Tied states, at most.
        gaussians: Gaussians of the model, at most; 0: 1000 for monophones (12 a phone, if that is
            more), 9000 for tied states.
        language_model: An ARPA file; None: n-grams of the training text.
        order: The length of those n-grams.
        perturb: Train on all audio at 0.9 and 1.1 times its speed, too.
        volume: Perturb the volume of each training utterance for the network's features.
        heldout: The share of the speakers that is held out.
        seed: Of the choice of speakers, and of the model.
        processes: How many work at a time.
    """

    features: FeatureType = FeatureType.FBANK
    inputs: InputOptions = field(default_factory=InputOptions)
    align: bool = True
    tying: TyingMethod = TyingMethod.TREE
    states: int = 1800
    gaussians: int = 0
    language_model: Path | None = None
    order: int = 2
    perturb: bool = False
    volume: bool = False
    heldout: float = 0.1
    seed: int = 0
    processes: int = 1

    def uses_archives(self) -> bool:
        """Whether precomputed features are used, not audio.

        Raises:
            UserError: They are, and would have to be perturbed.
        """
        if self.features is FeatureType.KALDI and (self.perturb or self.volume):
            raise UserError("perturbing needs audio, and --features kaldi reads none: choose one")
        return self.features is FeatureType.KALDI

    def facts(self) -> dict[str, JsonValue]:
        """The settings, for prep.json."""
        inputs = self.inputs
        return {
            "features": self.features.value,
            "rate": inputs.rate,
            "channel": inputs.channel,
            "resample": inputs.resample,
            "oov": inputs.oov.value,
            "align": self.align,
            "tying": self.tying.value,
            "states": self.states,
            "gaussians": self.gaussians,
            "language": None if self.language_model is None else str(self.language_model),
            "order": self.order,
            "perturb": self.perturb,
            "volume": self.volume,
            "heldout_share": self.heldout,
            "seed": self.seed,
        }


def prepare(data: Path, lexicon_file: Path, out: Path, options: PrepareOptions, log: Log) -> Prep:
    """Makes a PREP with everything that decoding needs.

    Args:
        data: A Kaldi data directory, an audio folder, or lhotse cuts.
        lexicon_file: Lines of a word and its phones.
        out: The PREP to make.
        options: The settings.
        log: Receives progress lines.

    Raises:
        UserError: `out` exists, an input cannot be read, or nothing usable is left.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already: choose another place or remove it first")
    lexicon = Lexicon.read(lexicon_file)
    validated = validate_data(
        data, options.inputs, lexicon, archives=options.uses_archives(), align=options.align
    )
    exclusions, lexicon = validated.exclusions, validated.lexicon or lexicon
    language_model = None
    if options.language_model is not None:
        language_model = read_language_model(options.language_model, lexicon.words, log)
    log(f"{len(validated.utterances)} utterances {_describe(validated.reader)} can be used")
    for note in (validated.guessed, validated.out_of_vocabulary):
        if note:
            log(note)
    for line in exclusions.summary():
        log(line)
    heldout = hold_out({u.speaker for u in validated.utterances}, options.heldout, options.seed)
    with scratch_directory(out) as scratch:
        extracted = extract_corpus(validated, heldout, options, scratch, log)
        checked = lexicon if options.align else None
        extracted = [
            (u, h) for u, h in extracted if alignable(u, len(h.network), checked, exclusions)
        ]
        if all(u.speaker in heldout or u.speed != 1 for u, _ in extracted):
            raise no_usable_utterance(data, exclusions)
        files: dict[str, bytes] = {}
        model: GmmHmm | None = None
        said = lexicon
        states = [np.zeros(0, dtype=np.int32)] * len(extracted)
        if options.align:
            model, paths = _align(extracted, heldout, lexicon, scratch, options, log)
            for (utterance, _), found in zip(extracted, paths, strict=True):
                if found is None:
                    exclusions.add(utterance.id, ExclusionReason.NO_PATH)
            kept = [
                (u, h, path)
                for (u, h), path in zip(extracted, paths, strict=True)
                if path is not None
            ]
            if all(u.speaker in heldout for u, _, _ in kept):
                raise no_usable_utterance(data, exclusions)
            extracted = [(u, h) for u, h, _ in kept]
            states = [path.states for _, _, path in kept]
            said = _trained_lexicon(kept, heldout, lexicon, model, log)
            shift = SHIFT_S
            if isinstance(validated.reader, AudioReader):
                shift = frame_shift(validated.reader.rate)
            files[WORD_TIMES_FILE] = word_times(((u, p) for u, _, p in kept), shift).encode()
        files[SOURCES_FILE] = sources_of(extracted, validated.reader)
        assets = _decoding_assets(
            extracted, heldout, lexicon, said, language_model, model, validated.reader, options
        )
        folder = scratch / ASSETS_FOLDER
        folder.mkdir()
        assets.write(folder)
        exclusions.write(folder / EXCLUDED_FILE)
        files |= {
            f"{ASSETS_FOLDER}/{file.name}": file.read_bytes() for file in sorted(folder.iterdir())
        }
        aligned = [(u, h, of) for (u, h), of in zip(extracted, states, strict=True)]
        count = model.tying.states if model is not None else 0
        corpus = replace(
            make_corpus(data, aligned, heldout, count, scratch),
            phones=len(lexicon.phones),
            labels=[_labels(u.words, lexicon) for u, _ in extracted],
        )
        if len(exclusions):
            listed = out / ASSETS_FOLDER / EXCLUDED_FILE
            log(f"{len(exclusions)} utterances were excluded: {listed}")
        return write_prep(out, corpus, options.facts(), beside=files)


def sources_of(
    kept: Sequence[tuple[Utterance, UtteranceFeatures]], reader: AudioReader | KaldiFeatureReader
) -> bytes:
    """The file of a PREP that says where each utterance comes from."""
    rate = reader.rate if isinstance(reader, AudioReader) else None
    return sources_text((u for u, _ in kept), rate).encode()


def _labels(words: Sequence[str], lexicon: Lexicon) -> Ints:
    """The phones of some words, from 1, each word by its likeliest pronunciation."""
    numbers = {name: number for number, name in enumerate(lexicon.phones, start=1)}
    return np.array([numbers[p] for w in words for p in lexicon.likeliest(w)], dtype=np.int64)


@contextmanager
def scratch_directory(out: Path) -> Iterator[Path]:
    """A folder on the disk that the PREP will be on, for as long as it is made.

    All features of a corpus are kept there, so that it need not fit into memory; and a place
    that cannot be written to is reported before work starts.

    Raises:
        UserError: There can be none.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(
            prefix=f".{out.name}.",
            dir=out.parent,
            ignore_cleanup_errors=True,  # network file systems keep files that are still mapped
        )
    except OSError as error:
        raise UserError(f"cannot write to {out.parent}: {error.strerror}") from None
    with scratch as folder:
        yield Path(folder)


def _describe(reader: AudioReader | KaldiFeatureReader) -> str:
    if isinstance(reader, KaldiFeatureReader):
        kind = "bands" if reader.bands else "cepstra"
        return f"with features of dimension {reader.dimension} ({kind}, it seems)"
    return f"at {reader.rate} Hz"


def extract_corpus(
    validated: ValidatedCorpus,
    heldout: frozenset[str],
    options: PrepareOptions,
    scratch: Path,
    log: Log,
) -> list[tuple[Utterance, UtteranceFeatures]]:
    """The features of all usable utterances, and of their copies at other speeds if asked for.

    They lie in files in `scratch`.
    """
    exclusions, utterances = validated.exclusions, list(validated.utterances)
    if options.perturb:
        train = [u for u in utterances if u.speaker not in heldout]
        utterances += [u.at_speed(speed) for speed in _SPEEDS for u in train]
    if options.volume:
        utterances = _at_volumes(utterances, heldout, options.seed)
    log(f"features: {options.features.value} of {len(utterances)} utterances")
    return extract_features(
        utterances,
        validated.reader,
        options.features,
        exclusions,
        processes=options.processes,
        log=log,
        scratch=scratch,
    )


def _at_volumes(
    utterances: Sequence[Utterance], heldout: frozenset[str], seed: int
) -> list[Utterance]:
    """The utterances, those to train on at volumes drawn for each of them."""
    volumes = np.random.default_rng(seed).uniform(*_VOLUMES, len(utterances)).tolist()
    return [
        u if u.speaker in heldout else replace(u, volume=volume)
        for u, volume in zip(utterances, volumes, strict=True)
    ]


def _align(
    extracted: Sequence[tuple[Utterance, UtteranceFeatures]],
    heldout: frozenset[str],
    lexicon: Lexicon,
    scratch: Path,
    options: PrepareOptions,
    log: Log,
) -> tuple[GmmHmm, list[Alignment | None]]:
    """Trains on the speakers that are not held out, and aligns all.

    Copies at another speed are aligned, not trained on: they would triple the work, and the tree
    would take them for new evidence.
    """
    stats = cepstral_cmvn_stats(extracted)
    starts = np.cumsum([0] + [len(h.cepstra) for _, h in extracted])
    concatenate_to_file(
        (gmm_features(h.cepstra, stats[u.speaker]) for u, h in extracted),
        scratch / "gaussian.npy",
        (int(starts[-1]), DELTA_FACTOR * extracted[0][1].cepstra.shape[1]),
        "float32",
    )
    alignment_data = AlignmentData(
        file=scratch / "gaussian.npy",
        starts=starts,
        words=[u.words for u, _ in extracted],
        lexicon=lexicon,
    )
    train = [n for n, (u, _) in enumerate(extracted) if u.speaker not in heldout and u.speed == 1]
    with Trainer(
        alignment_data, seed=options.seed, processes=options.processes, log=log
    ) as trainer:
        if options.tying is TyingMethod.NONE:
            model = trainer.monophones(train, options.gaussians or monophone_gaussians(lexicon))
        else:
            model = trainer.triphones(
                trainer.monophones(train, monophone_gaussians(lexicon)),
                train,
                most=options.states,
                gaussians=options.gaussians or _TRIPHONE_GAUSSIANS,
            )
        aligned = trainer.align(model, train, sorted({*range(len(extracted))} - {*train}))
    alignment_data.file.unlink()
    return model, [aligned[n] for n in range(len(extracted))]


def monophone_gaussians(lexicon: Lexicon) -> int:
    """Gaussians of monophones, at most.

    Where phones are marked for tone, stress or position in the word, 1000 would be too few.
    """
    return max(_MONOPHONE_GAUSSIANS, _GAUSSIANS_A_PHONE * len(lexicon.phones))


def _trained_lexicon(
    kept: Sequence[tuple[Utterance, UtteranceFeatures, Alignment]],
    heldout: frozenset[str],
    lexicon: Lexicon,
    model: GmmHmm,
    log: Log,
) -> Lexicon:
    """The lexicon without phones that do not occur in training.

    Their Gaussians are still those of the flat start, which fit an unusual voice better than the
    trained phones do.
    """
    states: set[int] = set()
    for utterance, _, path in kept:
        if utterance.speaker not in heldout:
            states.update(np.unique(path.states).tolist())
    names = model.topology.phones
    phones = {SILENCE, *(names[phone] for phone in model.tying.phones_of(states))}
    usable = lexicon.restricted_to(phones)
    lost = sorted(set(lexicon.entries) - set(usable.entries))
    if lost:
        silent = ", ".join(sorted(set(names) - phones)[:_SHOWN])
        log(
            f"{len(lost)} words cannot be recognised, as {lost[0]}: training has none of "
            f"their phones ({silent})"
        )
    return usable


def _decoding_assets(
    kept: Sequence[tuple[Utterance, UtteranceFeatures]],
    heldout: frozenset[str],
    whole_lexicon: Lexicon,
    lexicon: Lexicon,
    language_model: NgramModel | None,
    model: GmmHmm | None,
    reader: AudioReader | KaldiFeatureReader,
    options: PrepareOptions,
) -> DecodingAssets:
    whole = tuning = language_model
    if whole is None or tuning is None:
        said = [(u.words, u.speaker in heldout) for u, _ in kept if u.speed == 1]
        # Words that are silence or noise are in the language model only if transcripts have them.
        written = {word for words, _ in said for word in words}
        known = lexicon.speech_words | (written & lexicon.entries.keys())
        whole = estimate_ngrams([words for words, _ in said], known, options.order)
        tuning = estimate_ngrams([words for words, out in said if not out], known, options.order)
    return DecodingAssets(
        features=options.features,
        rate=0 if isinstance(reader, KaldiFeatureReader) else reader.rate,
        dimension=kept[0][1].network.shape[1],
        bands=isinstance(reader, KaldiFeatureReader) and reader.bands,
        lexicon=lexicon,
        phones=tuple(whole_lexicon.phones),
        gmm_hmm=model,
        language_model=whole,
        tuning_language_model=tuning,
        tuning_set=select_tuning_set([(u, h) for u, h in kept if u.speaker in heldout]),
    )


def make_corpus(
    data: Path,
    kept: Sequence[tuple[Utterance, UtteranceFeatures, NDArray[Any]]],
    heldout: frozenset[str],
    states: int,
    scratch: Path,
) -> Corpus:
    """What a PREP is written from: features and aligned states, so many in all."""
    starts = np.cumsum([0] + [len(h.network) for _, h, _ in kept])
    small = all(np.abs(h.network).max() < _MAX_HALF for _, h, _ in kept)
    return Corpus(
        origin=str(data),
        frames=concatenate_to_file(
            (h.network for _, h, _ in kept),
            scratch / "network.npy",
            (int(starts[-1]), kept[0][1].network.shape[1]),
            "float16" if small else "float32",
        ),
        states=np.concatenate([s for _, _, s in kept]),
        starts=starts,
        utterances=[u.id for u, _, _ in kept],
        speakers=[u.speaker for u, _, _ in kept],
        parts=[Part.HELDOUT if u.speaker in heldout else Part.TRAIN for u, _, _ in kept],
        state_count=states,
        frame_shift=timedelta(seconds=SHIFT_S),
    )
