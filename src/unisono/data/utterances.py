"""Whole utterances of a PREP as examples: subsampled frames, and the phones spoken."""

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


def long_enough(prep: Prep, part: Part, subsampling: int) -> NDArray[np.bool_]:
    """Which utterances of a part have enough outputs for their phones with this subsampling.

    Between two equal phones CTC needs one more output, for the blank between them.

    Raises:
        UserError: None of them has.
    """
    utterances = prep.utterances_of(part)
    outputs = -(-(prep.starts[utterances + 1] - prep.starts[utterances]) // subsampling)
    repeated = np.flatnonzero(prep.labels[1:] == prep.labels[:-1])
    first, stop = prep.label_starts[utterances], prep.label_starts[utterances + 1]
    # A repetition is counted where both labels are of the utterance.
    inside = np.searchsorted(repeated, stop - 1) - np.searchsorted(repeated, first)
    needed = stop - first + np.maximum(inside, 0)
    usable = np.asarray(outputs >= needed)
    if not usable.any():
        raise UserError(
            f"PREP {prep.path}: no {part.value} utterance has as many outputs as phones: use "
            f"a smaller network.subsampling than {subsampling}"
        )
    return usable


class UtteranceSource(Source):
    """The utterances of one part of a PREP that are long enough for CTC, numbered through.

    Output t of an utterance of n frames, t = 0 .. ceil(n / s) - 1 with s = `subsampling`, is frame
    s * t with its `context` neighbours each side, as `FrameSource` has it. `left` outputs stand
    before the first one and `right` behind the last one: copies of it. An utterance that is shorter
    than others of its batch is filled up with more of these.

    Attributes:
        frames: The frames that the utterances are made of.
        fingerprint: What the PREP is known by.
        device: As in `FrameSource`.
        dimension: Numbers in x at each output.
        left_out: How many utterances are too short for their phones.
        utterances: The PREP's numbers of the others, rising.
    """

    def __init__(
        self,
        prep: Prep,
        part: Part,
        *,
        subsampling: int,
        context: int,
        left: int,
        right: int,
        device: torch.device | None = None,
        augment: SpecAugment | None = None,
    ) -> None:
        """Makes the source.

        Args:
            prep: The PREP; it has phones.
            part: Whose utterances.
            subsampling: Frames from one output to the next, 1 or more.
            context: As in `FrameSource`.
            left: Outputs before the first one, 0 or more.
            right: Outputs behind the last one, 0 or more.
            device: As in `FrameSource`.
            augment: As in `FrameSource`.

        Raises:
            UserError: No utterance of the part is long enough.
        """
        self.frames = FrameSource(prep, part, context=context, device=device, augment=augment)
        self.fingerprint = self.frames.fingerprint
        self.device = device
        self.dimension = self.frames.dimension
        self._subsampling, self._left, self._right = subsampling, left, right
        usable = long_enough(prep, part, subsampling)
        self.left_out = int((~usable).sum())
        everyone = self.frames.utterances
        self.utterances = everyone[usable]
        lengths = prep.starts[everyone + 1] - prep.starts[everyone]
        self._firsts = (np.cumsum(lengths) - lengths)[usable]
        self._outputs = -(-lengths // subsampling)[usable]
        self._labels = [
            prep.labels[prep.label_starts[u] : prep.label_starts[u + 1]] for u in self.utterances
        ]

    def __len__(self) -> int:
        return len(self.utterances)

    def batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers utterances.

        Args:
            indices: B numbers in [0, len).

        Returns:
            x, B x (left + most outputs + right) x dimension float32, and y, B x (1 + most phones)
            int64: how many outputs each utterance has, then its phones, then 0.

        Raises:
            IndexError: A number is outside [0, len).
        """
        return self._gather(indices)

    def epoch_batch(
        self, indices: NDArray[np.int64], epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers utterances as `batch`, with the masks of an epoch of training."""
        return self._gather(indices, epoch)

    def _gather(
        self, indices: NDArray[np.int64], epoch: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        indices = checked(indices, len(self), "utterances")
        outputs, labels = self._outputs[indices], [self._labels[i] for i in indices]
        places = np.arange(-self._left, outputs.max() + self._right)
        inside = np.clip(places, 0, outputs[:, None] - 1)
        frames = (self._firsts[indices][:, None] + self._subsampling * inside).ravel()
        x, _ = self.frames.epoch_batch(frames, epoch)
        y = np.zeros((len(indices), 1 + max(map(len, labels))), dtype=np.int64)
        y[:, 0] = outputs
        for row, phones in zip(y, labels, strict=True):
            row[1 : 1 + len(phones)] = phones
        return x.view(*inside.shape, self.dimension), torch.from_numpy(y).to(x.device)
