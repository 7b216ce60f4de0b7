"""SpecAugment: bands and stretches of time of each utterance that are hidden in training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# Epochs whose masks are kept: a minibatch of the last epoch may be redone in the next one.
_EPOCHS_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class SpecAugment:
    """How many masks an utterance gets, and how wide (Park et al. 2019, arXiv:1904.08779).

    An utterance of T frames of D bands gets masks of its own in each epoch; U{a..b} is an integer
    drawn evenly, a and b included:

        `frequency_masks` times    f ~ U{0..min(F, D)},         first ~ U{0..D - f}
        `time_masks` times         t ~ U{0..min(W, floor(pT))}, first ~ U{0..T - t}

    Bands first to first + f - 1 of all frames, and frames first to first + t - 1 of all bands,
    are set to 0: the mean, since frames are normalised by speaker. Time is not warped.

    Attributes:
        frequency_masks: Masks of bands an utterance.
        frequency_width: The most bands of one, F.
        time_masks: Masks of frames an utterance.
        time_width: The most frames of one, W.
        time_share: The largest share of an utterance that one may hide, p.
        seed: Of all masks.
    """

    frequency_masks: int
    frequency_width: int
    time_masks: int
    time_width: int
    time_share: float
    seed: int


class _Masks(NamedTuple):
    """The masks of an epoch: first and one past the last, utterances x masks of each."""

    bands: tuple[NDArray[np.int32], NDArray[np.int32]]
    frames: tuple[NDArray[np.int32], NDArray[np.int32]]


class UtteranceMasks:
    """The masks of some utterances in each epoch.

    They are a function of (seed, epoch, utterance) alone: numbers of numpy's Philox generator,
    whose stream does not change between versions, with key (seed, epoch), in the order of the
    utterances. So a minibatch has the same masks whoever trains it, redone and resumed ones, too.
    """

    def __init__(self, settings: SpecAugment, lengths: NDArray[np.int64], bands: int) -> None:
        """Makes the masks of utterances of so many frames, and bands in each frame."""
        self._settings = settings
        self._lengths = lengths
        self._bands = bands
        self._of_epoch = lru_cache(maxsize=_EPOCHS_KEPT)(self._draw)

    def hide(
        self, x: torch.Tensor, utterance: NDArray[np.int64], frame: NDArray[np.int64], epoch: int
    ) -> None:
        """Sets what the masks of an epoch hide to 0, in place.

        Args:
            x: B x n x D: n frames, of one utterance, in each of B rows.
            utterance: The utterance of each row, B.
            frame: Which of its frames they are, B x n.
            epoch: The epoch, 0 or more.
        """
        masks = self._of_epoch(epoch)
        if self._settings.frequency_masks:
            bands = np.arange(self._bands, dtype=np.int32)[None]
            seen = _uncovered(masks.bands, utterance, bands)
            x *= torch.from_numpy(seen).to(x)[:, None, :]  # a fifth of masked_fill_'s time
        if self._settings.time_masks:
            seen = _uncovered(masks.frames, utterance, frame.astype(np.int32))
            x *= torch.from_numpy(seen).to(x)[:, :, None]

    def _draw(self, epoch: int) -> _Masks:
        settings = self._settings
        counts = settings.frequency_masks, settings.time_masks
        generator = np.random.Philox(key=np.array([settings.seed, epoch], dtype=np.uint64))
        numbers = generator.random_raw(len(self._lengths) * 2 * sum(counts)) >> np.uint64(32)
        widths, firsts = numbers.reshape(2, sum(counts), len(self._lengths))
        lengths = self._lengths.astype(np.uint64)
        room = np.full_like(lengths, self._bands)
        share = (settings.time_share * self._lengths).astype(np.uint64)
        band_masks = _place(
            widths[: counts[0]],
            firsts[: counts[0]],
            np.minimum(room, np.uint64(settings.frequency_width)),
            room,
        )
        frame_masks = _place(
            widths[counts[0] :],
            firsts[counts[0] :],
            np.minimum(share, np.uint64(settings.time_width)),
            lengths,
        )
        return _Masks(band_masks, frame_masks)


def _place(
    width: NDArray[np.uint64],
    first: NDArray[np.uint64],
    most: NDArray[np.uint64],
    room: NDArray[np.uint64],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Masks, utterances x masks, of 32-bit numbers: `width` up to `most`, within `room`."""
    one, bits = np.uint64(1), np.uint64(32)
    widths = (width * (most + one)) >> bits
    firsts = (first * (room - widths + one)) >> bits
    return firsts.T.astype(np.int32), (firsts + widths).T.astype(np.int32)


def _uncovered(
    masks: tuple[NDArray[np.int32], NDArray[np.int32]],
    utterance: NDArray[np.int64],
    places: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Which places (B x n, or 1 x n for all) the masks of each row's utterance leave."""
    firsts, stops = masks[0][utterance], masks[1][utterance]
    seen = np.ones((len(utterance), places.shape[1]), dtype=np.bool_)
    for first, stop in zip(firsts.T[:, :, None], stops.T[:, :, None], strict=True):
        seen &= (places < first) | (places >= stop)
    return seen
