"""From a Kaldi data directory to a PREP: features, and the aligned state of each frame."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from unisono.data import Corpus, Part, Prep, hold_out, write_prep
from unisono.errors import UserError
from unisono.speech.alignment.trainer import Aligned, Trainer
from unisono.speech.alignment.transcript_graph import Ints
from unisono.speech.alignment.word_times import word_times
from unisono.speech.alignment.worker import Acoustic, Spoken
from unisono.speech.corpus.data_directory import Utterance, nothing_usable
from unisono.speech.corpus.exclusions import Reason
from unisono.speech.corpus.lexicon import SILENCE, Lexicon
from unisono.speech.decoding.assets import FOLDER, Kit
from unisono.speech.decoding.tuning_set import sample_of
from unisono.speech.features.audio import Reader
from unisono.speech.features.extraction import (
    GAUSSIAN_WIDTH,
    Heard,
    gaussian_frames,
    hear,
    speaker_moments,
)
from unisono.speech.features.extractors import Features
from unisono.speech.features.frame_store import join
from unisono.speech.features.kaldi_features import Stored
from unisono.speech.features.spectrum import SHIFT_S, frame_shift
from unisono.speech.graph.language_model import Ngrams, estimate, read_language
from unisono.speech.validation import Checked, Intake, alignable, check_data

WORDS = "words.ctm"
"""The file of a PREP that says when each word was said."""
Say = Callable[[str], None]
# Numbers below it keep three digits in half precision.
_MOST_HALF = 1000
_NAMES_SHOWN = 10
_SPEEDS = (0.9, 1.1)
_VOLUMES = (0.125, 2.0)
_MONOPHONE_GAUSSIANS = 1000
_GAUSSIANS_A_PHONE = 12
_TRIPHONE_GAUSSIANS = 9000


class Tie(str, Enum):
    """How states of phones in context are tied."""

    NONE = "none"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How a corpus is prepared.

    Attributes:
        features: What the network hears.
        intake: Which audio and which words are accepted.
        tying: How states are tied.
        states: Tied states, at most.
        gaussians: Gaussians of the model, at most; 0: 1000 for monophones (12 a phone, if that is
            more), 9000 for tied states.
        language: An ARPA file; None: n-grams of the training text.
        order: The length of those n-grams.
        perturb: Train on all audio at 0.9 and 1.1 times its speed, too.
        volume: Let the network hear each training utterance at a volume of its own.
        heldout: The share of the speakers that is held out.
        seed: Of the choice of speakers, and of the model.
        processes: How many work at a time.
    """

    features: Features = Features.FBANK
    intake: Intake = field(default_factory=Intake)
    tying: Tie = Tie.TREE
    states: int = 1800
    gaussians: int = 0
    language: Path | None = None
    order: int = 2
    perturb: bool = False
    volume: bool = False
    heldout: float = 0.1
    seed: int = 0
    processes: int = 1

    def stored(self) -> bool:
        """Whether features made elsewhere are used, not audio.

        Raises:
            UserError: They are, and would have to be perturbed.
        """
        if self.features is Features.KALDI and (self.perturb or self.volume):
            raise UserError("perturbing needs audio, and --features kaldi reads none: choose one")
        return self.features is Features.KALDI

    def facts(self) -> dict[str, JsonValue]:
        """The settings, for prep.json."""
        intake = self.intake
        return {
            "features": self.features.value,
            "rate": intake.rate,
            "channel": intake.channel,
            "resample": intake.resample,
            "oov": intake.oov.value,
            "tying": self.tying.value,
            "states": self.states,
            "gaussians": self.gaussians,
            "language": None if self.language is None else str(self.language),
            "order": self.order,
            "perturb": self.perturb,
            "volume": self.volume,
            "heldout_share": self.heldout,
            "seed": self.seed,
        }


def prepare(data: Path, lexicon_file: Path, out: Path, how: Preparation, say: Say) -> Prep:
    """Makes a PREP with everything that decoding needs.

    Args:
        data: A Kaldi data directory.
        lexicon_file: Lines of a word and its phones.
        out: The PREP to make.
        how: The settings.
        say: Takes lines that tell what happens.

    Raises:
        UserError: `out` exists, an input cannot be read, or nothing usable is left.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already: choose another place or remove it first")
    lexicon = Lexicon.read(lexicon_file)
    checked = check_data(data, how.intake, lexicon, stored=how.stored())
    aside, lexicon = checked.aside, checked.lexicon or lexicon
    language = None
    if how.language is not None:
        language = read_language(how.language, lexicon.words, say)
    say(f"{len(checked.utterances)} utterances {_described(checked.reader)} can be used")
    if checked.out_of_vocabulary:
        say(checked.out_of_vocabulary)
    for line in aside.summary():
        say(line)
    heldout = hold_out({u.speaker for u in checked.utterances}, how.heldout, how.seed)
    with scratch_beside(out) as scratch:
        heard = hear_all(checked, heldout, how, scratch, say)
        heard = [(u, h) for u, h in heard if alignable(u, len(h.network), lexicon, aside)]
        if all(u.speaker in heldout or u.speed != 1 for u, _ in heard):
            raise nothing_usable(data, aside)
        model, paths = _align(heard, heldout, lexicon, scratch, how, say)
        kept = [(u, h, path) for (u, h), path in zip(heard, paths, strict=True) if path is not None]
        for (utterance, _), found in zip(heard, paths, strict=True):
            if found is None:
                aside.add(utterance.id, Reason.NO_PATH)
        if all(u.speaker in heldout for u, _, _ in kept):
            raise nothing_usable(data, aside)
        said = _said(kept, heldout, lexicon, model, say)
        kit = _kit(kept, heldout, said, language, model, checked.reader, how)
        folder = scratch / FOLDER
        folder.mkdir()
        kit.write(folder)
        aside.write(folder / "set_aside.txt")
        files = {f"{FOLDER}/{file.name}": file.read_bytes() for file in sorted(folder.iterdir())}
        shift = frame_shift(kit.rate) if kit.rate else SHIFT_S
        files[WORDS] = word_times(((u, p) for u, _, p in kept), shift).encode()
        states = [(u, h, path.states) for u, h, path in kept]
        corpus = corpus_of(data, states, heldout, model.tying.states, scratch)
        if len(aside):
            say(f"{len(aside)} utterances were set aside: {out / FOLDER / 'set_aside.txt'}")
        return write_prep(out, corpus, how.facts(), beside=files)


@contextmanager
def scratch_beside(out: Path) -> Iterator[Path]:
    """A folder on the disk that the PREP will be on, for as long as it is made.

    All features of a corpus are kept there, so that it need not fit into memory; and a place
    that cannot be written to is told of before work starts.

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


def _described(reader: Reader | Stored) -> str:
    if isinstance(reader, Stored):
        kind = "bands" if reader.bands else "cepstra"
        return f"with features of dimension {reader.dimension} ({kind}, it seems)"
    return f"at {reader.rate} Hz"


def hear_all(
    checked: Checked, heldout: frozenset[str], how: Preparation, scratch: Path, say: Say
) -> list[tuple[Utterance, Heard]]:
    """The features of all usable utterances, and of their copies at other speeds if asked for.

    They lie in files in `scratch`.
    """
    aside, utterances = checked.aside, list(checked.utterances)
    if how.perturb:
        train = [u for u in utterances if u.speaker not in heldout]
        utterances += [u.at_speed(speed) for speed in _SPEEDS for u in train]
    if how.volume:
        utterances = _at_volumes(utterances, heldout, how.seed)
    say(f"features: {how.features.value} of {len(utterances)} utterances")
    return hear(
        utterances,
        checked.reader,
        how.features,
        aside,
        processes=how.processes,
        say=say,
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
    heard: Sequence[tuple[Utterance, Heard]],
    heldout: frozenset[str],
    lexicon: Lexicon,
    scratch: Path,
    how: Preparation,
    say: Say,
) -> tuple[Acoustic, list[Aligned | None]]:
    """Trains on the speakers that are not held out, and aligns all.

    Copies at another speed are aligned, not trained on: they would triple the work, and the tree
    would take them for new evidence.
    """
    moments = speaker_moments(heard)
    starts = np.cumsum([0] + [len(h.cepstra) for _, h in heard])
    join(
        (gaussian_frames(h.cepstra, moments[u.speaker]) for u, h in heard),
        scratch / "gaussian.npy",
        (int(starts[-1]), GAUSSIAN_WIDTH * heard[0][1].cepstra.shape[1]),
        "float32",
    )
    spoken = Spoken(
        file=scratch / "gaussian.npy",
        starts=starts,
        words=[u.words for u, _ in heard],
        lexicon=lexicon,
    )
    train = [n for n, (u, _) in enumerate(heard) if u.speaker not in heldout and u.speed == 1]
    with Trainer(spoken, seed=how.seed, processes=how.processes, say=say) as trainer:
        if how.tying is Tie.NONE:
            model = trainer.monophones(train, how.gaussians or monophone_gaussians(lexicon))
        else:
            model = trainer.triphones(
                trainer.monophones(train, monophone_gaussians(lexicon)),
                train,
                most=how.states,
                gaussians=how.gaussians or _TRIPHONE_GAUSSIANS,
            )
        aligned = trainer.align(model, range(len(heard)))
    spoken.file.unlink()
    return model, [aligned[n] for n in range(len(heard))]


def monophone_gaussians(lexicon: Lexicon) -> int:
    """Gaussians of monophones, at most.

    Where tones, stress or places in a word tell many phones apart, 1000 would be too few for
    some of each state.
    """
    return max(_MONOPHONE_GAUSSIANS, _GAUSSIANS_A_PHONE * len(lexicon.phones))


def _said(
    kept: Sequence[tuple[Utterance, Heard, Aligned]],
    heldout: frozenset[str],
    lexicon: Lexicon,
    model: Acoustic,
    say: Say,
) -> Lexicon:
    """The lexicon without phones that nobody says in training.

    Nothing is known of how they sound: their Gaussians are still those of everything, which fit
    any voice that is unlike the others better than the phones that it says.
    """
    states: set[int] = set()
    for utterance, _, path in kept:
        if utterance.speaker not in heldout:
            states.update(np.unique(path.states).tolist())
    names = model.topology.phones
    phones = {SILENCE, *(names[phone] for phone in model.tying.phones_of(states))}
    usable = lexicon.within(phones)
    lost = sorted(set(lexicon.entries) - set(usable.entries))
    if lost:
        silent = ", ".join(sorted(set(names) - phones)[:_NAMES_SHOWN])
        say(
            f"{len(lost)} words cannot be found, as {lost[0]}: nobody says their phones in "
            f"training ({silent})"
        )
    return usable


def _kit(
    kept: Sequence[tuple[Utterance, Heard, Aligned]],
    heldout: frozenset[str],
    lexicon: Lexicon,
    language: Ngrams | None,
    model: Acoustic,
    reader: Reader | Stored,
    how: Preparation,
) -> Kit:
    whole = tuning = language
    if whole is None or tuning is None:
        said = [(u.words, u.speaker in heldout) for u, _, _ in kept if u.speed == 1]
        # Words that are silence or noise are heard only where people write them.
        written = {word for words, _ in said for word in words}
        known = lexicon.spoken | (written & lexicon.entries.keys())
        whole = estimate([words for words, _ in said], known, how.order)
        tuning = estimate([words for words, out in said if not out], known, how.order)
    return Kit(
        features=how.features,
        rate=0 if isinstance(reader, Stored) else reader.rate,
        dimension=kept[0][1].network.shape[1],
        bands=isinstance(reader, Stored) and reader.bands,
        lexicon=lexicon,
        acoustic=model,
        language=whole,
        tuning_language=tuning,
        sample=sample_of([(u, h) for u, h, _ in kept if u.speaker in heldout]),
    )


def corpus_of(
    data: Path,
    kept: Sequence[tuple[Utterance, Heard, Ints]],
    heldout: frozenset[str],
    states: int,
    scratch: Path,
) -> Corpus:
    """What a PREP is written from: features and aligned states, so many in all."""
    starts = np.cumsum([0] + [len(h.network) for _, h, _ in kept])
    small = all(np.abs(h.network).max() < _MOST_HALF for _, h, _ in kept)
    return Corpus(
        origin=str(data),
        frames=join(
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
