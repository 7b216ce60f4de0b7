"""Word and character errors, how sure they are, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.speech.dependencies import import_package

Words = tuple[str, ...]

_REPLICATIONS = 2000
_NOTHING = "***"


@dataclass(frozen=True, kw_only=True)
class ErrorCounts:
    """Errors against a reference of so many words (or characters)."""

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    words: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            insertions=self.insertions + other.insertions,
            deletions=self.deletions + other.deletions,
            substitutions=self.substitutions + other.substitutions,
            words=self.words + other.words,
        )

    @property
    def total(self) -> int:
        """All errors."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float:
        """Errors a word of the reference; 1 an error where it has none."""
        return self.total / max(self.words, 1)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of some utterances.

    Attributes:
        errors: In words.
        characters: In characters, spaces left out.
        interval: 95% of word error rates when utterances are drawn again at random.
        sentences: Utterances with an error, and all.
        speakers: The errors of each speaker.
        aligned: Reference over hypothesis, for each utterance with an error.
    """

    errors: ErrorCounts
    characters: ErrorCounts
    interval: tuple[float, float]
    sentences: tuple[int, int]
    speakers: dict[str, ErrorCounts]
    aligned: list[str]

    def facts(self) -> dict[str, JsonValue]:
        """The figures, for score.json; rates are shares, not percents."""
        return {
            "wer": self.errors.rate,
            "cer": self.characters.rate,
            "words": self.errors.words,
            "ins": self.errors.insertions,
            "del": self.errors.deletions,
            "sub": self.errors.substitutions,
            "interval": list(self.interval),
            "characters": self.characters.words,
            "sentences": self.sentences[1],
            "sentence_errors": self.sentences[0],
            "speakers": {
                name: {"wer": e.rate, "words": e.words, "errors": e.total}
                for name, e in sorted(self.speakers.items())
            },
        }

    def lines(self) -> list[str]:
        """The figures in words, a line a speaker at the end."""
        e, (low, high) = self.errors, self.interval
        lines = [
            f"WER {100 * e.rate:.2f}% ({e.total} of {e.words} words: {e.insertions} inserted, "
            f"{e.deletions} deleted, {e.substitutions} substituted), "
            f"95% between {100 * low:.2f}% and {100 * high:.2f}%",
            f"CER {100 * self.characters.rate:.2f}% of {self.characters.words} characters; "
            f"{self.sentences[0]} of {self.sentences[1]} utterances have errors",
        ]
        width = max(map(len, self.speakers), default=0)
        for name, own in sorted(self.speakers.items()):
            lines.append(f"{name:{width}}  {100 * own.rate:6.2f}%  {own.total:5} of {own.words}")
        return lines


def count_errors(reference: Sequence[str], found: Sequence[str]) -> ErrorCounts:
    """Counts the errors of the alignment that has the fewest."""
    counted = import_package("kaldialign").edit_distance(list(reference), list(found))
    return ErrorCounts(
        insertions=counted["ins"],
        deletions=counted["del"],
        substitutions=counted["sub"],
        words=len(reference),
    )


def score(
    references: Mapping[str, Words], found: Mapping[str, Words], speakers: Mapping[str, str]
) -> Score:
    """Scores hypotheses against references.

    Args:
        references: The transcripts, by utterance.
        found: What was found, for the same utterances.
        speakers: The speaker of each utterance.
    """
    errors, characters, wrong = ErrorCounts(), ErrorCounts(), 0
    by_speaker: dict[str, ErrorCounts] = {}
    aligned = []
    counts = []
    for name, reference in references.items():
        own = count_errors(reference, found[name])
        errors += own
        counts.append((own.total, own.words))
        characters += count_errors("".join(reference), "".join(found[name]))
        by_speaker[speakers[name]] = by_speaker.get(speakers[name], ErrorCounts()) + own
        if own.total:
            wrong += 1
            aligned.append(_side_by_side(name, reference, found[name]))
    return Score(
        errors=errors,
        characters=characters,
        interval=_interval(np.array(counts)),
        sentences=(wrong, len(references)),
        speakers=by_speaker,
        aligned=aligned,
    )


def _interval(counts: NDArray[np.int64]) -> tuple[float, float]:
    """What 95% of the rates lie between, given errors and words of each utterance."""
    random = np.random.default_rng(0)
    rates = np.empty(_REPLICATIONS)
    for turn in range(_REPLICATIONS):
        errors, words = counts[random.integers(len(counts), size=len(counts))].sum(0)
        rates[turn] = errors / max(words, 1)
    low, high = np.quantile(rates, [0.025, 0.975])
    return float(low), float(high)


def _side_by_side(name: str, reference: Words, found: Words) -> str:
    pairs = import_package("kaldialign").align(list(reference), list(found), _NOTHING)
    widths = [max(len(a), len(b)) for a, b in pairs]
    ref = " ".join(f"{a:{w}}" for (a, _), w in zip(pairs, widths, strict=True))
    hyp = " ".join(f"{b:{w}}" for (_, b), w in zip(pairs, widths, strict=True))
    return f"{name}\n  ref  {ref.rstrip()}\n  hyp  {hyp.rstrip()}\n"
