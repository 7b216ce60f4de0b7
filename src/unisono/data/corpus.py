"""Frames, states and who said what, in memory or mapped: what a PREP is written from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.data.split import Part
from unisono.errors import UserError

# Statistics read the frames about this many at a time, so that a mapped array may exceed memory.
_BLOCK_FRAMES = 65536
# A dimension that never changes is divided by this instead of by zero.
_SMALLEST_STD = 1e-5


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """A corpus of N frames in U utterances, checked as a whole by `check`.

    Attributes:
        origin: Where it came from, in a few words: for messages and for prep.json.
        frames: N x D, float16 or float32.
        states: N integers: the state of each frame, in [0, state_count); none, where there is no
            alignment.
        starts: U + 1 integers: utterance u is frames starts[u] to starts[u + 1] - 1.
        utterances: U distinct ids.
        speakers: The speaker of each utterance.
        parts: The part of each utterance.
        state_count: How many states there are; 0: there is no alignment.
        frame_shift: The time from frame to frame, where it is known.
        phones: How many phones there are; 0: what is said is not known.
        labels: The phones of each utterance, numbered from 1.
    """

    origin: str
    frames: NDArray[Any]
    states: NDArray[Any]
    starts: NDArray[Any]
    utterances: Sequence[str]
    speakers: Sequence[str]
    parts: Sequence[Part]
    state_count: int
    frame_shift: timedelta | None = None
    phones: int = 0
    labels: Sequence[NDArray[Any]] = ()

    def check(self) -> None:
        """Checks that the pieces fit together; looks at all states but at no frame.

        Raises:
            UserError: They do not; the text says which and where.
        """
        self._check_frames()
        if self.state_count:
            self._check_states()
        elif not self.phones:
            self._refuse("neither states nor phones: there is nothing to learn")
        self._check_utterances()
        if self.phones:
            self._check_labels()

    def _check_frames(self) -> None:
        if self.frames.ndim != 2 or self.frames.dtype not in (np.float16, np.float32):
            self._refuse(
                f"frames are {self.frames.ndim}-dimensional {self.frames.dtype}; "
                "they must be frames x features of float16 or float32"
            )
        count = len(self.frames)
        if count == 0 or self.frames.shape[1] == 0:
            self._refuse(f"frames have shape {self.frames.shape}: there is nothing to learn from")

    def _check_states(self) -> None:
        count = len(self.frames)
        if self.states.ndim != 1 or self.states.dtype.kind not in "iu":
            self._refuse(f"states are {self.states.dtype}; they must be one integer a frame")
        if len(self.states) != count:
            self._refuse(f"{count} frames but {len(self.states)} states: one a frame is needed")
        low, high = int(self.states.min()), int(self.states.max())
        if low < 0 or high >= self.state_count:
            self._refuse(f"states run from {low} to {high}, outside 0..{self.state_count - 1}")

    def _check_utterances(self) -> None:
        starts, count = self.starts, len(self.utterances)
        if starts.ndim != 1 or starts.dtype.kind not in "iu" or len(starts) != count + 1:
            self._refuse(
                f"starts are {starts.dtype} of shape {starts.shape} for {count} utterances; "
                f"they must be {count + 1} integers"
            )
        for name, values in (("speakers", self.speakers), ("parts", self.parts)):
            if len(values) != count:
                self._refuse(f"{count} utterances but {len(values)} {name}: one each is needed")
        if starts[0] != 0 or starts[-1] != len(self.frames):
            self._refuse(
                f"starts run from {starts[0]} to {starts[-1]}; "
                f"they must run from 0 to the number of frames, {len(self.frames)}"
            )
        # Compared, not subtracted: a difference of unsigned starts would wrap and hide a fall.
        empty = np.flatnonzero(starts[1:] <= starts[:-1])
        if len(empty):
            self._refuse(f"utterance {self.utterances[empty[0]]!r} has no frames: leave it out")
        identity, times = Counter(self.utterances).most_common(1)[0]
        if times > 1:
            self._refuse(f"utterance id {identity!r} occurs {times} times: ids must be distinct")
        torn = [name for name in self.utterances if name.split() != [name]]
        if torn:
            self._refuse(
                f"utterance id {torn[0]!r} is empty or has blanks or line ends, which end an id in "
                "Kaldi's files: name it otherwise"
            )
        both = self._speakers_of(Part.TRAIN) & self._speakers_of(Part.HELDOUT)
        if both:
            self._refuse(
                f"speaker {min(both)!r} is in both train and heldout: hold out whole speakers"
            )
        if Part.TRAIN not in self.parts:
            self._refuse("no utterance is for training: at least one must have part train")

    def _check_labels(self) -> None:
        if len(self.labels) != len(self.utterances):
            self._refuse(f"{len(self.utterances)} utterances but phones of {len(self.labels)}")
        if not any(map(len, self.labels)):
            self._refuse("no utterance has phones: there is nothing to learn")
        for name, labels in zip(self.utterances, self.labels, strict=True):
            if len(labels) and not 1 <= labels.min() <= labels.max() <= self.phones:
                self._refuse(f"utterance {name!r} has phones outside 1..{self.phones}")

    def speaker_names(self) -> list[str]:
        """The speakers' names, sorted: their places here are their rows in every table."""
        return sorted(set(self.speakers))

    def log_priors(self) -> NDArray[np.float32]:
        """The log share of each state among the train frames.

        A state that no train frame has counts as one frame, so that all are finite.
        """
        train = np.array([part is Part.TRAIN for part in self.parts])
        states = self.states[np.repeat(train, self._lengths())]
        counts = np.bincount(states.astype(np.int64), minlength=self.state_count)
        return np.log(np.maximum(counts, 1) / len(states)).astype(np.float32)

    def speaker_moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each speaker's frames, over all of its utterances.

        Computed in float64 in two passes: first the mean, then the mean square around it.

        Returns:
            Two arrays, speakers x D; no standard deviation is below 1e-5.

        Raises:
            UserError: A frame holds a value that is not finite.
        """
        names = {name: row for row, name in enumerate(self.speaker_names())}
        rows = np.array([names[name] for name in self.speakers])
        shape = len(names), self.frames.shape[1]
        counts = np.bincount(rows, weights=self._lengths())[:, None]
        mean, square = np.zeros(shape), np.zeros(shape)
        for first, last, block, at in self._blocks():
            sums = np.add.reduceat(block, at, axis=0)
            broken = np.flatnonzero(~np.isfinite(sums).all(axis=1))
            if len(broken):
                name = self.utterances[first + broken[0]]
                self._refuse(f"utterance {name!r} has frames with values that are not finite")
            np.add.at(mean, rows[first:last], sums)
        mean /= counts
        for first, last, block, at in self._blocks():
            block -= np.repeat(mean[rows[first:last]], np.diff(at, append=len(block)), axis=0)
            np.add.at(square, rows[first:last], np.add.reduceat(block * block, at, axis=0))
        std = np.maximum(np.sqrt(square / counts), _SMALLEST_STD)
        return mean.astype(np.float32), std.astype(np.float32)

    def _blocks(self) -> Iterator[tuple[int, int, NDArray[np.float64], NDArray[np.int64]]]:
        """Yields (first utterance, one past the last, their frames, where each begins there)."""
        starts = self.starts.astype(np.int64)
        first = 0
        while first < len(starts) - 1:
            last = int(np.searchsorted(starts, starts[first] + _BLOCK_FRAMES, side="right")) - 1
            last = max(last, first + 1)
            block = self.frames[starts[first] : starts[last]].astype(np.float64)
            yield first, last, block, starts[first:last] - starts[first]
            first = last

    def _lengths(self) -> NDArray[np.int64]:
        """The frames of each utterance."""
        starts = self.starts.astype(np.int64)
        return starts[1:] - starts[:-1]

    def _speakers_of(self, part: Part) -> set[str]:
        return {name for name, of in zip(self.speakers, self.parts, strict=True) if of is part}

    def _refuse(self, what: str) -> None:
        raise UserError(f"{self.origin}: {what}")
