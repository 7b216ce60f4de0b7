"""Excluded utterances: which ones, why, and one report of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from unicodedata import normalize

EXCLUDED_FILE = "excluded.txt"
"""The file that lists them, in a PREP and in the output of decoding."""
_SHOWN = 3
_DETAIL_SHOWN = 200


def _form(word: str) -> str:
    return normalize("NFKC", word).casefold()


class ExclusionReason(Enum):
    """Why an utterance is excluded."""

    DUPLICATE = "the id occurs twice with different contents"
    NO_AUDIO = "no audio of that name"
    PIPE = "a command instead of a file (--allow-pipes runs it)"
    COMPUTED = "audio that is not stored in a file as it is (CutSet.save_audios writes it to one)"
    UNREADABLE = "audio that cannot be read"
    UNREADABLE_FEATURES = "features that cannot be read"
    DIMENSION = "features of another dimension"
    RATE = "another sample rate (--resample converts it)"
    CHANNEL = "the audio lacks the channel"
    SEGMENT = "a segment outside its recording"
    NO_SPEAKER = "no speaker in utt2spk"
    NO_TEXT = "no transcript, or an empty one"
    UNKNOWN_WORD = "words without pronunciation (without --oov skip they are kept)"
    TOO_SHORT = "audio too short for its text"
    TOO_LONG = "too long to be aligned in one piece: divide it by segments"
    NO_ALIGNMENT = "no alignment that fits its frames"
    NO_PATH = "no path through the text fits the audio"


class Exclusions:
    """The excluded utterances of a corpus, with reason and detail, and its unknown words."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[ExclusionReason, str]] = {}
        self._words: Counter[str] = Counter()
        self._variants: dict[str, str] = {}

    def add(self, utterance: str, reason: ExclusionReason, detail: str = "") -> None:
        """Excludes an utterance; the first reason counts."""
        self._entries.setdefault(utterance, (reason, detail))

    def add_oov_words(self, words: Iterable[str]) -> None:
        """Counts words without pronunciation, in excluded and in used utterances."""
        self._words.update(words)

    def add_spelling_variants(self, known: Iterable[str]) -> None:
        """Finds words without pronunciation that the lexicon has in another spelling.

        Args:
            known: Words of the lexicon. Case and Unicode normalisation make a spelling.
        """
        if self._words:
            forms = {_form(word): word for word in known}
            alike = {word: forms.get(_form(word), "") for word in sorted(self._words)}
            self._variants = {word: other for word, other in alike.items() if other}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self._entries

    def count(self, reason: ExclusionReason) -> int:
        """How many utterances were excluded for a reason."""
        return sum(why is reason for why, _ in self._entries.values())

    def summary(self) -> list[str]:
        """A line a reason, with the first names and what exactly is wrong with the first one."""
        lines = []
        for reason in ExclusionReason:
            names = [name for name, (why, _) in self._entries.items() if why is reason]
            if names:
                more = ", ..." if len(names) > _SHOWN else ""
                shown = ", ".join(names[:_SHOWN])
                detail = " ".join(self._entries[names[0]][1].split())[:_DETAIL_SHOWN]
                lines.append(
                    f"excluded {len(names)}: {reason.value}: {shown}{more}"
                    + (f" ({names[0]}: {detail})" if detail else "")
                )
        if self._words:
            words = ", ".join(f"{word} ({n})" for word, n in self._words.most_common(10))
            lines.append(f"{len(self._words)} words without pronunciation: {words}")
        if self._variants:
            word, other = next(iter(self._variants.items()))
            # Spellings that look the same are shown as code points.
            show = ascii if normalize("NFKC", word) == normalize("NFKC", other) else repr
            lines.append(
                f"{len(self._variants)} of them are in the lexicon in another form, "
                f"{show(word)} as {show(other)}: write both alike"
            )
        return lines

    def text(self) -> str:
        """One line per utterance, then one per word without pronunciation."""
        lines = [
            f"{name}\t{reason.value}\t{detail}".rstrip()
            for name, (reason, detail) in sorted(self._entries.items())
        ]
        lines += [f"#word\t{word}\t{n}" for word, n in sorted(self._words.items())]
        return "".join(line + "\n" for line in lines)

    def write(self, path: Path) -> None:
        """Writes that text."""
        path.write_text(self.text(), encoding="utf-8")
