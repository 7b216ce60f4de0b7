"""Two ways to gather frames with their context: from memory, and from the mapped file."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.data.prep import Prep


class Gather(Protocol):
    """Gathers examples: normalised frames with c neighbours each side, and their states."""

    def __call__(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers B examples by number: (B x (2c + 1)D float32, B int64)."""


class DeviceFrames:
    """All frames normalised once and kept on a device.

    Each utterance is stored with its first and its last frame repeated c times more. So a frame
    and its context are (2c + 1)D numbers in a row of a strided view whose rows overlap, and a
    minibatch is one copy of B rows. The row of example i of utterance u (of those gathered from)
    is i + 2cu: i frames and u pairs of repeated ends lie before its first neighbour.

    The floor is B(2c + 1)D floats read and written: 451 kB each way for B = 256, c = 5, D = 40.
    """

    def __init__(
        self, prep: Prep, utterances: NDArray[np.int64], context: int, device: torch.device
    ) -> None:
        firsts, stops = prep.starts[utterances], prep.starts[utterances + 1]
        lengths = stops - firsts
        dimension = prep.header.dimension
        padded = torch.empty(int(lengths.sum()) + 2 * context * len(utterances), dimension)
        states = np.empty(lengths.sum(), dtype=prep.states.dtype)
        mean, std = torch.from_numpy(prep.speaker_mean), torch.from_numpy(prep.speaker_std)
        at = 0
        for u, (first, stop) in enumerate(zip(firsts, stops, strict=True)):
            speaker, length = prep.table.speaker[utterances[u]], stop - first
            frames = torch.from_numpy(np.array(prep.frames[first:stop])).float()
            room = padded[at + 2 * context * u :][: length + 2 * context]
            body = room[context : context + length]
            torch.sub(frames, mean[speaker], out=body)
            body /= std[speaker]
            room[:context], room[context + length :] = body[0], body[-1]
            states[at : at + length] = prep.states[first:stop]
            at += length
        ends_before = np.repeat(2 * context * np.arange(len(utterances)), lengths)
        width = (2 * context + 1) * dimension
        padded = padded.to(device)
        self._windows = padded.as_strided((len(padded) - 2 * context, width), (dimension, 1))
        self._rows = torch.from_numpy(np.arange(at) + ends_before).to(device)
        self._states = torch.from_numpy(states).to(device)

    def __call__(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        examples = torch.from_numpy(indices)
        if self._rows.is_cuda:  # from pinned memory, so that nobody waits for the device
            examples = examples.pin_memory().to(self._rows.device, non_blocking=True)
        x = self._windows.index_select(0, self._rows.index_select(0, examples))
        return x, self._states.index_select(0, examples).long()


class MappedFrames:
    """Frames stay in the mapped file; each minibatch is gathered and normalised for itself.

    Reads half the bytes where frames are float16, but in B(2c + 1) pieces, and computes
    (x - mean) / std for each neighbour anew. Memory grows with the utterances, not the frames.
    """

    def __init__(self, prep: Prep, utterances: NDArray[np.int64], context: int) -> None:
        """Notes where the frames of `utterances` lie; reads none."""
        self._frames, self._states = np.asarray(prep.frames), np.asarray(prep.states)
        self._first = prep.starts[utterances]
        self._last = prep.starts[utterances + 1] - 1
        ends = np.cumsum(self._last - self._first + 1)
        self._ends = ends
        self._shift = self._last + 1 - ends
        self._offsets = np.arange(-context, context + 1)
        self._speaker = np.array(prep.table.speaker)[utterances]
        self._mean, self._std = prep.speaker_mean, prep.speaker_std

    def __call__(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        utterance = np.searchsorted(self._ends, indices, side="right")
        frame = indices + self._shift[utterance]
        near = np.clip(
            frame[:, None] + self._offsets,
            self._first[utterance][:, None],
            self._last[utterance][:, None],
        )
        # numpy converts float16 several times slower than torch, so it only moves the numbers.
        pieces = torch.from_numpy(self._frames.take(near.ravel(), axis=0))
        x = pieces.float().view(*near.shape, self._frames.shape[1])
        speaker = self._speaker[utterance]
        x -= torch.from_numpy(self._mean[speaker])[:, None]
        x /= torch.from_numpy(self._std[speaker])[:, None]
        y = torch.from_numpy(self._states[frame].astype(np.int64))
        return x.flatten(1), y
