"""Word times from an alignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from unisono.speech.alignment.trainer import Alignment
from unisono.speech.corpus.ctm import TimedWord, ctm_line
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.features.spectrum import SHIFT_S, WINDOW_S


def timed_words(words: Sequence[str], path: Alignment, shift: float = SHIFT_S) -> list[TimedWord]:
    """The words of an utterance with their times from its first sample on.

    Frame t is computed from the samples of t * 10 ms to t * 10 ms + 25 ms and represents their
    middle. A word that begins with frame t therefore begins half-way between the middles of
    frames t - 1 and t, at t * 10 ms + 7.5 ms; one that begins with frame 0, at 0.

    Args:
        words: The transcript.
        path: The best path.
        shift: The seconds from frame to frame, where they are not 10 ms exactly.
    """

    def boundary(frame: int) -> float:
        return frame * shift + (WINDOW_S - SHIFT_S) / 2 if frame else 0.0

    begins = np.flatnonzero(np.diff(path.words, prepend=-1) != 0)
    ends = [*begins[1:].tolist(), len(path.words)]
    return [
        TimedWord(word=words[path.words[first]], start=boundary(first), end=boundary(last))
        for first, last in zip(begins.tolist(), ends, strict=True)
        if path.words[first] >= 0
    ]


def word_times(aligned: Iterable[tuple[Utterance, Alignment]], shift: float = SHIFT_S) -> str:
    """A CTM file of all utterances at their own speed, by recordings and times in them."""
    lines = []
    for utterance, path in aligned:
        if utterance.speed == 1:
            for timed_word in timed_words(utterance.words, path, shift):
                shifted = timed_word.shifted(utterance.start)
                lines.append(ctm_line(utterance.recording, utterance.channel + 1, shifted))
    return "".join(lines)
