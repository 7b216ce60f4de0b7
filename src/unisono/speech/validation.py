"""Validation of a corpus before work starts: which utterances can be used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from unisono.errors import UserError
from unisono.speech.alignment.topology import MIN_PHONE_FRAMES
from unisono.speech.alignment.transcript_graph import estimate_nodes
from unisono.speech.corpus.data_directory import Utterance, no_usable_utterance
from unisono.speech.corpus.exclusions import ExclusionReason, Exclusions
from unisono.speech.corpus.lexicon import Lexicon, Oov, Pronunciation
from unisono.speech.corpus.read import read_corpus
from unisono.speech.features.audio import (
    HIGHEST_RATE,
    LOWEST_RATE,
    AudioReader,
    UtteranceError,
    probe,
    sample_rate,
)
from unisono.speech.features.extractors import neighbour_correlation
from unisono.speech.features.kaldi_archives import KaldiFeatureReader, feature_shape
from unisono.speech.features.spectrum import SHIFT_S
from unisono.speech.graph.g2p import GraphemeToPhoneme

# Frames times nodes of an utterance to be aligned: at two bytes each, and some times as many
# with triphones, more would fill the memory.
_MAX_CELLS = 500_000_000
# The kind of features, and the rate of commands, are found from this many utterances at most;
# filterbanks by the correlation of neighbouring dimensions.
_INSPECTED = 20
_MIN_BAND_CORRELATION = 0.5
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which input is accepted.

    Attributes:
        rate: The sample rate in Hz; 0: the commonest one of the corpus.
        channel: Which channel of the audio, from 0.
        resample: Convert audio of another rate instead of excluding it.
        allow_pipes: Run commands that write audio instead of excluding them.
        oov: How utterances with out-of-vocabulary words are used.
    """

    rate: int = 0
    channel: int = 0
    resample: bool = False
    allow_pipes: bool = False
    oov: Oov = Oov.MAP


@dataclass(frozen=True, kw_only=True)
class ValidatedCorpus:
    """A validated corpus.

    Attributes:
        utterances: The usable utterances; words without pronunciation are replaced in them.
        reader: How to read them.
        exclusions: The other utterances, and why they cannot be used.
        lexicon: The lexicon, with guessed words, and the unknown word if any utterance needs it.
        out_of_vocabulary: A line about replaced words; empty where there are none.
        guessed: A line about guessed pronunciations; empty where there are none.
    """

    utterances: list[Utterance]
    reader: AudioReader | KaldiFeatureReader
    exclusions: Exclusions
    lexicon: Lexicon | None = None
    out_of_vocabulary: str = ""
    guessed: str = ""


def validate_data(
    data: Path,
    inputs: InputOptions,
    lexicon: Lexicon | None,
    *,
    archives: bool = False,
    expected: KaldiFeatureReader | None = None,
    align: bool = True,
) -> ValidatedCorpus:
    """Validates a corpus: every text, and every audio header or feature matrix.

    Args:
        data: The corpus, in one of the forms that `read_corpus` reads.
        inputs: What is accepted.
        lexicon: To check transcripts with; None: they are not needed, and not checked.
        archives: Whether precomputed features are used, not audio.
        expected: What these must be like; None: like most of the corpus.
        align: Whether transcripts are to be aligned, for which audio may be too short or too long.

    Raises:
        UserError: A file of it cannot be read, or no utterance can be used.
    """
    exclusions = Exclusions()
    utterances = read_corpus(
        data,
        exclusions,
        transcribed=lexicon is not None,
        allow_pipes=inputs.allow_pipes,
        channel=inputs.channel,
        features=archives,
    )
    replaced: dict[str, int] = {}
    guessed: dict[str, list[Pronunciation]] = {}
    if lexicon is not None:
        if inputs.oov is Oov.G2P:
            guessed = _guess(utterances, lexicon)
            lexicon = replace(lexicon, entries={**lexicon.entries, **guessed})
        utterances, replaced = _check_words(utterances, lexicon, inputs.oov, exclusions)
        if replaced:
            lexicon = lexicon.with_unknown_word()
    reader: AudioReader | KaldiFeatureReader
    if archives:
        reader = expected or _most_common_features(utterances)
    else:
        rate = inputs.rate or _most_common_rate(utterances)
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise UserError(
                f"{data}: a sample rate of {rate} Hz cannot be used; "
                f"{LOWEST_RATE} to {HIGHEST_RATE}"
            )
        reader = AudioReader(rate=rate, resample=inputs.resample)
    usable = []
    frames_kept = 0
    for utterance in utterances:
        try:
            frames = reader.frames(utterance)
        except UtteranceError as bad:
            exclusions.add(utterance.id, bad.reason, bad.detail)
            continue
        aligned = lexicon if align else None
        if utterance.is_command or alignable(utterance, frames, aligned, exclusions):
            usable.append(utterance)
            frames_kept += frames if utterance.id in replaced else 0
    if not usable:
        raise no_usable_utterance(data, exclusions)
    line = ""
    if replaced:
        assert lexicon is not None
        line = _out_of_vocabulary(usable, replaced, frames_kept, lexicon)
    return ValidatedCorpus(
        utterances=usable,
        reader=reader,
        exclusions=exclusions,
        lexicon=lexicon,
        out_of_vocabulary=line,
        guessed=_describe(guessed),
    )


def _guess(utterances: list[Utterance], lexicon: Lexicon) -> dict[str, list[Pronunciation]]:
    """Pronunciations, by their spelling, of the words that the lexicon lacks, where it can be."""
    missing = sorted({word for u in utterances for word in lexicon.missing(u.words)})
    model = GraphemeToPhoneme.train(lexicon) if missing else None
    guesses = {word: model.pronounce(word) for word in missing if model is not None}
    return {word: [phones] for word, phones in guesses.items() if phones is not None}


def _describe(guessed: dict[str, list[Pronunciation]]) -> str:
    if not guessed:
        return ""
    shown = ", ".join(f"{word} ({' '.join(ps[0])})" for word, ps in list(guessed.items())[:_SHOWN])
    return (
        f"words with a pronunciation guessed from the spelling: {len(guessed)}, such as {shown}; "
        "check them in speech/lexicon.txt of the PREP"
    )


def _out_of_vocabulary(
    usable: list[Utterance], replaced: dict[str, int], frames: int, lexicon: Lexicon
) -> str:
    kept = [replaced[utterance.id] for utterance in usable if utterance.id in replaced]
    words = sum(len(utterance.words) for utterance in usable)
    phones = " ".join(lexicon.entries[lexicon.unknown_word][0])
    return (
        f"WARNING: OUT OF VOCABULARY: {sum(kept)} of {words} words, in {len(kept)} of "
        f"{len(usable)} utterances ({frames * SHIFT_S / 3600:.2f} h), have no pronunciation and "
        f"are trained as {lexicon.unknown_word} ({phones}); --oov skip excludes these utterances"
    )


def alignable(
    utterance: Utterance, frames: int, lexicon: Lexicon | None, exclusions: Exclusions
) -> bool:
    """Whether an utterance has the frames that its words need, and not far too many of both.

    Otherwise it is excluded. Without a lexicon nothing is aligned, and any number of frames
    will do, but none.
    """
    needed = 1
    if lexicon is not None:
        needed = max(1, MIN_PHONE_FRAMES * lexicon.shortest(utterance.words))
        if frames * estimate_nodes(utterance.words, lexicon) > _MAX_CELLS:
            detail = f"{frames} frames, {len(utterance.words)} words"
            exclusions.add(utterance.id, ExclusionReason.TOO_LONG, detail)
            return False
    if frames < needed:
        exclusions.add(
            utterance.id, ExclusionReason.TOO_SHORT, f"{frames} frames, {needed} are needed"
        )
    return frames >= needed


def _check_words(
    utterances: list[Utterance], lexicon: Lexicon, oov: Oov, exclusions: Exclusions
) -> tuple[list[Utterance], dict[str, int]]:
    """The utterances that can be pronounced, and how many words were replaced in which of them."""
    known, unknown_word = [], lexicon.unknown_word
    replaced: dict[str, int] = {}
    for utterance in utterances:
        missing = lexicon.missing(utterance.words)
        exclusions.add_oov_words(missing)
        if missing and oov is Oov.SKIP:
            exclusions.add(
                utterance.id, ExclusionReason.UNKNOWN_WORD, " ".join(sorted(set(missing)))
            )
            continue
        if missing:
            words = (word if word in lexicon.entries else unknown_word for word in utterance.words)
            utterance = replace(utterance, words=tuple(words), spoken=utterance.words)
            replaced[utterance.id] = len(missing)
        known.append(utterance)
    exclusions.add_spelling_variants(lexicon.entries)
    return known, replaced


def _most_common_rate(utterances: list[Utterance]) -> int:
    """The sample rate of most files; where there is a tie, the highest of them.

    Where there are commands alone, that of the first one that writes audio.

    Raises:
        UserError: The first commands all fail.
    """
    counts: Counter[int] = Counter()
    for utterance in utterances:
        if not utterance.is_command:
            try:
                rate = probe(utterance.audio)[1]
            except UtteranceError:
                continue
            if LOWEST_RATE <= rate <= HIGHEST_RATE:
                counts[rate] += 1
    commands = [utterance for utterance in utterances if utterance.is_command]
    if not counts and commands:
        return _rate_of_commands(commands[:_INSPECTED])
    if not counts:
        return LOWEST_RATE
    return max(counts, key=lambda rate: (counts[rate], rate))


def _rate_of_commands(utterances: list[Utterance]) -> int:
    for utterance in utterances:
        try:
            return sample_rate(utterance)
        except UtteranceError as bad:
            failed = bad
    raise UserError(f"commands in wav.scp write no audio: {failed.detail}")


def _most_common_features(utterances: list[Utterance]) -> KaldiFeatureReader:
    """The features of most utterances; where there is a tie, those of the highest dimension."""
    counts: Counter[int] = Counter()
    for utterance in utterances:
        if not utterance.is_command:
            try:
                counts[feature_shape(utterance.audio)[1]] += 1
            except UtteranceError:
                continue
    if not counts and any(utterance.is_command for utterance in utterances):
        raise UserError(
            "feats.scp has commands alone, so the dimension is not known: give archives"
        )
    size = max(counts, key=lambda size: (counts[size], size), default=1)
    reader = KaldiFeatureReader(dimension=size, bands=False)
    found: list[float] = []
    for utterance in utterances:
        if not utterance.is_command and len(found) < _INSPECTED:
            try:
                found.append(neighbour_correlation(reader.read(utterance)))
            except UtteranceError:
                continue
    return replace(reader, bands=sum(found) > _MIN_BAND_CORRELATION * len(found))
