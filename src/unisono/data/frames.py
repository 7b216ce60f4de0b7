"""Frames of a PREP as examples: one frame with its context and its state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.data.gather import DeviceFrames, Gather, MappedFrames
from unisono.data.prep import Prep
from unisono.data.source import Source, checked
from unisono.data.spec_augment import SpecAugment, UtteranceMasks
from unisono.data.split import Part
from unisono.errors import UserError

# A part whose normalised frames take at most this is read into memory, once a process; a larger
# one stays in the mapped file, which all learners of a machine share.
RESIDENT_BYTES = 1 << 30


class FrameSource(Source):
    """The frames of one part of a PREP, numbered through, each with its context.

    Example i is x = the frame and its `context` neighbours each side, oldest first, (2c + 1)D
    numbers, and y = the frame's state. Every number is normalised by its speaker,

        x = (frame - speaker_mean) / speaker_std,

    and where a neighbour would lie outside the utterance, the utterance's first or last frame
    stands in: a context never crosses an utterance.

    Attributes:
        prep: The PREP.
        part: The part.
        context: Neighbours each side, c.
        fingerprint: What the PREP is known by.
        dimension: Numbers in x, (2c + 1)D.
        device: Where the whole part is kept and batches come out; None: the CPU.
        utterances: The PREP's numbers of this part's utterances, rising.
    """

    def __init__(
        self,
        prep: Prep,
        part: Part,
        *,
        context: int,
        device: torch.device | None = None,
        augment: SpecAugment | None = None,
    ) -> None:
        """Makes the source.

        Args:
            prep: The PREP.
            part: Whose frames.
            context: Neighbours each side, 0 or more.
            device: Where the whole part is kept and batches come out. With None batches come
                out on the CPU, and the part is kept in memory only if it is small.
            augment: What `epoch_batch` hides; None: nothing.

        Raises:
            UserError: The part has no frames, or the context is negative.
        """
        if context < 0:
            raise UserError(f"a context of {context} frames: give 0 or more")
        self.prep = prep
        self.part = part
        self.context = context
        self.device = device
        self.fingerprint = f"PREP {prep.fingerprint[:12]}"
        self.dimension = (2 * context + 1) * prep.header.dimension
        self.utterances = prep.utterances_of(part)
        if not len(self.utterances):
            raise UserError(f"PREP {prep.path} has no {part.value} frames: prepare it with some")
        lengths = prep.starts[self.utterances + 1] - prep.starts[self.utterances]
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._masks: UtteranceMasks | None = None
        if augment is not None:
            self._masks = UtteranceMasks(augment, lengths, prep.header.dimension)
        self._gather: Gather
        if device is None and 4 * len(self) * prep.header.dimension > RESIDENT_BYTES:
            self._gather = MappedFrames(prep, self.utterances, context)
        else:
            home = device or torch.device("cpu")
            self._gather = DeviceFrames(prep, self.utterances, context, home)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers examples.

        Args:
            indices: B numbers in [0, len).

        Returns:
            x, B x dimension float32, and y, B int64.

        Raises:
            IndexError: A number is outside [0, len).
        """
        return self._gather(checked(indices, len(self), "examples"))

    def epoch_batch(
        self, indices: NDArray[np.int64], epoch: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers examples as `batch`, with the masks of an epoch of training; None: without.

        A mask belongs to the utterance: neighbours in time have it, too, and a frame that stands
        in for one outside the utterance is hidden where it is hidden itself.
        """
        x, y = self.batch(indices)
        if self._masks is not None and epoch is not None:
            utterance = np.searchsorted(self._starts, indices, side="right") - 1
            near = indices[:, None] + np.arange(-self.context, self.context + 1)
            first, stop = self._starts[utterance, None], self._starts[utterance + 1, None]
            frame = np.clip(near, first, stop - 1) - first
            self._masks.hide(x.view(*frame.shape, -1), utterance, frame, epoch)
        return x, y

    def whole(self, utterance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gathers all frames of one utterance, in order.

        Args:
            utterance: Its place in `utterances`.

        Returns:
            As `batch`.

        Raises:
            IndexError: There is no such place.
        """
        if not 0 <= utterance < len(self.utterances):
            raise IndexError(f"utterance {utterance} of {len(self.utterances)}")
        return self.batch(np.arange(self._starts[utterance], self._starts[utterance + 1]))

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields all examples in order, `size` at a time; the last batch may be smaller."""
        for first in range(0, len(self), size):
            yield self.batch(np.arange(first, min(first + size, len(self))))
