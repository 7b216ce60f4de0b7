"""The lexicon: how words are said."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from unisono.events import UserError
from unisono.speech.datadir import read_lines

SILENCE = "SIL"
"""The phone of silence; it need not be in the lexicon."""
NOISE = "SPN"
"""The phone of what has no pronunciation: unknown words and noise."""
UNKNOWN = "<unk>"
"""The word that stands for words without pronunciation."""
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
    """

    entries: dict[str, list[Pronunciation]] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Lexicon:
        """Reads lines of a word and its phones; a word may have several lines.

        Raises:
            UserError: The file cannot be read, or a line is not a word and its phones.
        """
        entries: dict[str, list[Pronunciation]] = {}
        for line in read_lines(path):
            word, *phones = line.split()
            if not phones:
                raise UserError(f"{path}: the word {word!r} has no phones; add them or take it out")
            named = [name for name in (word, *phones) if name in _RESERVED or name[0] == "#"]
            if named:
                raise UserError(f"{path}: {named[0]!r} in {line!r} is a reserved name; rename it")
            variants = entries.setdefault(word, [])
            if tuple(phones) not in variants:
                variants.append(tuple(phones))
        if not entries:
            raise UserError(f"{path} holds no word: give lines of a word and its phones")
        return cls(entries=entries)

    def with_unknown(self) -> Lexicon:
        """The same with the unknown word, said as noise, unless it has it already."""
        return Lexicon(entries={UNKNOWN: [(NOISE,)], **self.entries})

    def write(self, path: Path) -> None:
        """Writes it in the form that `read` reads."""
        lines = [f"{w} {' '.join(p)}\n" for w, ps in self.entries.items() for p in ps]
        path.write_text("".join(lines), encoding="utf-8")

    @property
    def words(self) -> list[str]:
        """The words, sorted."""
        return sorted(self.entries)

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
