"""Pronunciation lexicons."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import read_lines

SILENCE = "SIL"
"""The phone of silence; it need not be in the lexicon."""
NOISE = "SPN"
"""The spoken-noise phone: unknown words and noise."""
UNKNOWN = "<unk>"
"""The word that stands for words without pronunciation."""
_MAX_PHONES = 10_000
_NON_SPEECH = frozenset({SILENCE, NOISE})
_RESERVED = {"<eps>", "<s>", "</s>", "#0"}


class Oov(str, Enum):
    """How utterances with out-of-vocabulary words are used."""

    SKIP = "skip"
    MAP = "map"
    G2P = "g2p"


Pronunciation = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Words with their pronunciations, each a sequence of phones.

    Attributes:
        entries: The pronunciations of each word, the first one first.
        probabilities: The probability of pronunciations that have one other than 1.
    """

    entries: dict[str, list[Pronunciation]] = field(repr=False)
    probabilities: dict[tuple[str, Pronunciation], float] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path) -> Lexicon:
        """Reads lines of a word and its phones; a word may have several lines.

        Where every word is followed by a number above 0 and up to 1, as in Kaldi's lexiconp.txt,
        that is the probability of this pronunciation; three more numbers, as in Kaldi's
        lexiconp_silprob.txt, are skipped. Silence and noise may be in small letters.

        Raises:
            UserError: The file cannot be read, or a line is not a word and its phones.
        """
        entries: dict[str, list[Pronunciation]] = {}
        probabilities: dict[tuple[str, Pronunciation], float] = {}
        rows = [line.split() for line in read_lines(path)]
        weighted = all(len(row) > 2 and 0 < _number(row[1]) <= 1 for row in rows)
        more = weighted and all(len(row) > 5 and min(map(_number, row[2:5])) >= 0 for row in rows)
        for row in rows:
            word, phones = row[0], row[1 + weighted + 3 * more :]
            if not phones:
                raise UserError(f"{path}: the word {word!r} has no phones; add them or take it out")
            named = [name for name in (word, *phones) if name in _RESERVED or name[0] == "#"]
            if named:
                line = " ".join(row)
                raise UserError(f"{path}: {named[0]!r} in {line!r} is a reserved name; rename it")
            pronunciation = tuple(p.upper() if p.upper() in _NON_SPEECH else p for p in phones)
            variants = entries.setdefault(word, [])
            if pronunciation not in variants:
                variants.append(pronunciation)
            if weighted:
                probabilities[word, pronunciation] = max(
                    probabilities.get((word, pronunciation), 0.0), float(row[1])
                )
        if not entries:
            raise UserError(f"{path} holds no word: give lines of a word and its phones")
        read = cls(
            entries=entries, probabilities={key: p for key, p in probabilities.items() if p < 1}
        )
        if len(read.phones) > _MAX_PHONES:
            raise UserError(
                f"{path} has {len(read.phones)} different phones, such as {read.phones[-1]!r}: "
                "it must have lines of a word and its phones"
            )
        return read

    @property
    def unknown_word(self) -> str:
        """The word that stands for unknown ones, as the lexicon spells it."""
        return next((word for word in self.entries if word.lower() == UNKNOWN), UNKNOWN)

    def with_unknown_word(self) -> Lexicon:
        """A copy with the unknown word, pronounced as spoken noise, unless it has one."""
        return replace(self, entries={self.unknown_word: [(NOISE,)], **self.entries})

    def restricted_to(self, phones: Collection[str]) -> Lexicon:
        """The pronunciations made of some phones, and the words that have such."""
        known = {w: [p for p in ps if set(p).issubset(phones)] for w, ps in self.entries.items()}
        return replace(
            self,
            entries={word: variants for word, variants in known.items() if variants},
        )

    def write(self, path: Path) -> None:
        """Writes it in the form that `read` reads."""
        lines = []
        for word, variants in self.entries.items():
            for pronunciation in variants:
                fields = [word]
                if self.probabilities:
                    fields.append(repr(self.probabilities.get((word, pronunciation), 1.0)))
                lines.append(" ".join([*fields, *pronunciation]) + "\n")
        path.write_text("".join(lines), encoding="utf-8")

    @property
    def words(self) -> list[str]:
        """The words, sorted."""
        return sorted(self.entries)

    @property
    def speech_words(self) -> set[str]:
        """The words that have a pronunciation other than silence and noise."""
        return {
            w for w, variants in self.entries.items() if any(set(p) - _NON_SPEECH for p in variants)
        }

    @property
    def phones(self) -> list[str]:
        """The phones, silence first, then sorted."""
        used = {
            phone
            for variants in self.entries.values()
            for pronunciation in variants
            for phone in pronunciation
        }
        return [SILENCE, *sorted(used - {SILENCE})]

    def likeliest(self, word: str) -> Pronunciation:
        """The most probable pronunciation of a word; among equals, the first."""
        return max(self.entries[word], key=lambda p: self.probabilities.get((word, p), 1.0))

    def missing(self, words: tuple[str, ...]) -> list[str]:
        """Those of some words that have no pronunciation."""
        return [word for word in words if word not in self.entries]

    def shortest(self, words: tuple[str, ...]) -> int:
        """The phones of the shortest pronunciation of some words."""
        return sum(min(map(len, self.entries[word])) for word in words)


def _number(text: str) -> float:
    """The number in a text; -1 if it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
