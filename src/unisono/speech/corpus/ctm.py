"""CTM files: recording, channel, start and duration in seconds, and word, one word per line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import read_lines


@dataclass(frozen=True, kw_only=True)
class TimedWord:
    """A word with its start and end time in seconds."""

    word: str
    start: float
    end: float

    def shifted(self, seconds: float) -> TimedWord:
        """The same, later."""
        return TimedWord(word=self.word, start=self.start + seconds, end=self.end + seconds)


def ctm_line(recording: str, channel: int, timed_word: TimedWord) -> str:
    """A line of a CTM file; the channel counts from 1."""
    length = timed_word.end - timed_word.start
    return f"{recording} {channel} {timed_word.start:.4f} {length:.4f} {timed_word.word}\n"


def read_ctm(path: Path) -> dict[str, list[TimedWord]]:
    """Reads the words of each recording, in the order of the file.

    Raises:
        UserError: The file cannot be read, or a line is not a word with its times.
    """
    words: dict[str, list[TimedWord]] = {}
    for line in read_lines(path):
        try:
            recording, _, start, length, word = line.split()[:5]
            first = float(start)
            timed_word = TimedWord(word=word, start=first, end=first + float(length))
        except ValueError:
            raise UserError(f"{path}: {line!r} is not a word with its times") from None
        words.setdefault(recording, []).append(timed_word)
    return words
