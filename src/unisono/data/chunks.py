"""Chunks of a PREP as examples: consecutive frames with their context and their states."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.data.frames import FrameSource
from unisono.data.prep import Prep
from unisono.data.source import Source, checked
from unisono.data.spec_augment import SpecAugment
from unisono.data.split import Part
from unisono.errors import UserError

UNLABELLED = -100
"""The state of a place beyond the end of an utterance, which torch's cross entropy ignores."""


class ChunkSource(Source):
    """The chunks of one part of a PREP, numbered through.

    An utterance is cut into chunks of T frames from its first frame on; the last one may reach
    beyond its end. So every frame has its state in exactly one chunk, and places behind the end
    have `UNLABELLED`. x is the T frames with `left` frames before and `right` behind them,
    normalised as in `FrameSource`; outside the utterance its first or last frame stands in.

    Attributes:
        frames: The frames that the chunks are made of.
        fingerprint: What the PREP is known by.
        device: As in `FrameSource`.
        dimension: Numbers in a frame.
        chunk: Frames with states in a chunk, T.
        left: Frames before them.
        right: Frames behind them.
    """

    def __init__(
        self,
        prep: Prep,
        part: Part,
        *,
        chunk: int,
        left: int,
        right: int,
        device: torch.device | None = None,
        augment: SpecAugment | None = None,
    ) -> None:
        """Makes the source.

        Args:
            prep: The PREP.
            part: Whose frames.
            chunk: Frames with states in a chunk, 1 or more.
            left: Frames before them, 0 or more.
            right: Frames behind them, 0 or more.
            device: As in `FrameSource`.
            augment: As in `FrameSource`.

        Raises:
            UserError: The part has no frames, or a number is out of its range.
        """
        if chunk < 1 or left < 0 or right < 0:
            raise UserError(
                f"chunks of {chunk} frames with {left} before and {right} behind: give 1 or more, "
                "and 0 or more around them"
            )
        self.frames = FrameSource(prep, part, context=0, device=device, augment=augment)
        self.fingerprint = self.frames.fingerprint
        self.device = device
        self.dimension = self.frames.dimension
        self.chunk, self.left, self.right = chunk, left, right
        utterances = self.frames.utterances
        lengths = prep.starts[utterances + 1] - prep.starts[utterances]
        self._stops = np.cumsum(lengths)
        self._firsts = self._stops - lengths
        self._ends = np.cumsum(-(-lengths // chunk))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers chunks.

        Args:
            indices: B numbers in [0, len).

        Returns:
            x, B x (left + chunk + right) x dimension float32, and y, B x chunk int64.

        Raises:
            IndexError: A number is outside [0, len).
        """
        return self._gather(*self._places(indices), self.chunk)

    def epoch_batch(
        self, indices: NDArray[np.int64], epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers chunks as `batch`, with the masks of an epoch of training."""
        return self._gather(*self._places(indices), self.chunk, epoch)

    def _places(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first frame of each chunk, and its utterance."""
        indices = checked(indices, len(self), "chunks")
        utterance = np.searchsorted(self._ends, indices, side="right")
        before = np.concatenate([[0], self._ends])[utterance]
        return self._firsts[utterance] + self.chunk * (indices - before), utterance

    def whole(self, utterance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers one utterance as a single chunk, B = 1, as long as it is.

        Args:
            utterance: Its place in `frames.utterances`.

        Returns:
            As `batch`; every place has a state.

        Raises:
            IndexError: There is no such place.
        """
        if not 0 <= utterance < len(self._ends):
            raise IndexError(f"utterance {utterance} of {len(self._ends)}")
        length = int(self._stops[utterance] - self._firsts[utterance])
        return self._gather(self._firsts[[utterance]], np.array([utterance]), length)

    def _gather(
        self,
        start: NDArray[np.int64],
        utterance: NDArray[np.int64],
        chunk: int,
        epoch: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = start[:, None] + np.arange(-self.left, chunk + self.right)
        inside = np.clip(
            wanted, self._firsts[utterance][:, None], self._stops[utterance][:, None] - 1
        )
        x, y = self.frames.epoch_batch(inside.ravel(), epoch)
        labelled = slice(self.left, self.left + chunk)
        states = y.view(inside.shape)[:, labelled]
        behind = torch.from_numpy((inside != wanted)[:, labelled]).to(y.device)
        return x.view(*inside.shape, self.dimension), states.masked_fill(behind, UNLABELLED)
