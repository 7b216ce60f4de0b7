"""The lexicon: how words are said."""

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
"""The phone of what has no pronunciation: unknown words and noise."""
UNKNOWN = "<unk>"
"""The word that stands for words without pronunciation."""
_MAX_PHONES = 10_000
_NON_SPEECH = frozenset({SILENCE, NOISE})
_RESERVED = {"<eps>", "<s>", "</s>", "#0"}


class Oov(str, Enum):
    """What becomes of an utterance with words that the lexicon lacks."""

    SKIP = "skip"
    MAP = "map"


Pronunciation = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Words with their pronunciations, each a sequence of phones.

    Attributes:
        entries: The pronunciations of each word, the first one first.
        probabilities: How likely those are whose probability is given, and not 1.
    """

    entries: dict[str, list[Pronunciation]] = field(repr=False)
    probabilities: dict[tuple[str, Pronunciation], float] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path) -> Lexicon:
        """Reads lines of a word and its phones; a word may have several lines.

        Where every word is followed by a number above 0 and up to 1, as in Kaldi's lexiconp.txt,
        that is how likely this pronunciation of it is; three more numbers, as in Kaldi's
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
            said = tuple(p.upper() if p.upper() in _NON_SPEECH else p for p in phones)
            variants = entries.setdefault(word, [])
            if said not in variants:
                variants.append(said)
            if weighted:
                probabilities[word, said] = max(probabilities.get((word, said), 0.0), float(row[1]))
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
        """The same with the unknown word, said as noise, unless it has it already."""
        return replace(self, entries={self.unknown_word: [(NOISE,)], **self.entries})

    def restricted_to(self, phones: Collection[str]) -> Lexicon:
        """The pronunciations that have no other phones, and the words that have such."""
        known = {w: [p for p in ps if set(p).issubset(phones)] for w, ps in self.entries.items()}
        return replace(self, entries={word: said for word, said in known.items() if said})

    def write(self, path: Path) -> None:
        """Writes it in the form that `read` reads."""
        lines = []
        for word, variants in self.entries.items():
            for said in variants:
                share = (
                    f"{self.probabilities.get((word, said), 1.0)!r} " if self.probabilities else ""
                )
                lines.append(f"{word} {share}{' '.join(said)}\n")
        path.write_text("".join(lines), encoding="utf-8")

    @property
    def words(self) -> list[str]:
        """The words, sorted."""
        return sorted(self.entries)

    @property
    def speech_words(self) -> set[str]:
        """The words that are not silence and noise alone, however they are said."""
        return {
            w for w, variants in self.entries.items() if any(set(p) - _NON_SPEECH for p in variants)
        }

    @property
    def phones(self) -> list[str]:
        """The phones, silence first, then sorted."""
        used = {phone for variants in self.entries.values() for said in variants for phone in said}
        return [SILENCE, *sorted(used - {SILENCE})]

    def missing(self, words: tuple[str, ...]) -> list[str]:
        """Those of some words that have no pronunciation."""
        return [word for word in words if word not in self.entries]

    def shortest(self, words: tuple[str, ...]) -> int:
        """The fewest phones in which words can be said."""
        return sum(min(map(len, self.entries[word])) for word in words)


def _number(text: str) -> float:
    """What a text says, or less than nothing if that is no number."""
    try:
        return float(text)
    except ValueError:
        return -1.0
