"""Deltas, and cepstral mean and variance normalisation (CMVN)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unisono.speech.features.spectrum import Array

_REACH = 2
_SMALLEST_VARIANCE = 1e-20
_SMALLEST_SLIDING_VARIANCE = 1e-10


def add_deltas(frames: Array, order: int = 2) -> Array:
    """Appends differences up to `order` to each frame.

    The first difference is the slope of a line through 5 frames, sum_k k x[t + k] / sum_k k^2,
    k = -2..2. The next one is that filter convolved with itself and applied to the input;
    outside the utterance its first or last frame stands in.
    """
    slope = np.arange(-_REACH, _REACH + 1) / sum(k * k for k in range(-_REACH, _REACH + 1))
    filters = [np.ones(1)]
    for _ in range(order):
        filters.append(np.convolve(filters[-1], slope))
    columns = []
    for taps in filters:
        reach = len(taps) // 2
        padded = np.concatenate([frames[:1]] * reach + [frames] + [frames[-1:]] * reach)
        columns.append(sum(tap * padded[k : k + len(frames)] for k, tap in enumerate(taps)))
    return np.concatenate(columns, axis=1)


def apply_cmvn(utterances: Sequence[Array], *, variance: bool = False) -> list[Array]:
    """Takes the common mean off some utterances (of a speaker, or just one).

    Args:
        utterances: Frames x dimensions each.
        variance: Whether to divide by the standard deviation, too.
    """
    total = sum(len(frames) for frames in utterances)
    mean = sum(frames.sum(0) for frames in utterances) / total
    scale = np.ones_like(mean)
    if variance:
        square = sum(((frames - mean) ** 2).sum(0) for frames in utterances) / total
        scale = np.maximum(square, _SMALLEST_VARIANCE) ** -0.5
    return [(frames - mean) * scale for frames in utterances]


def apply_sliding_cmvn(
    frames: Array,
    *,
    window: int = 600,
    fewest: int = 100,
    centre: bool = False,
    variance: bool = False,
) -> Array:
    """Takes a moving mean off an utterance.

    The window is the frame and up to `window` before it (or, centred, half of it each side,
    pushed inside the utterance); at the start it is at least `fewest` frames long.
    """
    count = len(frames)
    at = np.arange(count)
    first = at - (window // 2 if centre else window)
    last = first + window if centre else at + 1
    last = np.where(first < 0, last - first, last)
    first = np.maximum(first, 0)
    if not centre:
        last = np.where(last > at, np.maximum(at + 1, fewest), last)
    first = np.maximum(np.where(last > count, first - (last - count), first), 0)
    last = np.minimum(last, count)
    size = (last - first)[:, None]
    sums = np.concatenate([np.zeros((1, frames.shape[1])), np.cumsum(frames, axis=0)])
    mean = (sums[last] - sums[first]) / size
    if not variance:
        return np.asarray(frames - mean)
    squares = np.concatenate([np.zeros((1, frames.shape[1])), np.cumsum(frames**2, axis=0)])
    spread = (squares[last] - squares[first]) / size - mean**2
    scaled = (frames - mean) * np.maximum(spread, _SMALLEST_SLIDING_VARIANCE) ** -0.5
    return np.asarray(np.where(size == 1, 0.0, scaled))
