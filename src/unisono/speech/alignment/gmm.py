"""Mixtures of diagonal Gaussians, one a state, all in flat arrays."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Frames = NDArray[np.float32]

VARIANCE_FLOOR = 1e-4
_FEWEST_FRAMES = 20.0
_SPLIT_POWER = 0.25
_SPLIT_STEP = 0.01
# Scores of Gaussians that are computed at a time, so that they stay in the cache.
_BLOCK_SCORES = 1 << 17
# Frames that are added up in single precision.
_BLOCK_FRAMES = 4096
# States with more frames than these are added up one by one.
_BATCH_ROWS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class GmmStatistics:
    """What re-estimation needs of some frames, for each of G Gaussians in D dimensions.

    Attributes:
        sums: G x (2D + 1): of the frames that each accounts for their sum, the sum of their
            squares, and their number.
        loglike: The frames' log-likelihood, summed.
    """

    sums: Floats
    loglike: float

    @property
    def count(self) -> Floats:
        """G: the frames that each Gaussian accounts for."""
        return self.sums[:, -1]

    @property
    def total(self) -> Floats:
        """G x D: their sum."""
        return self.sums[:, : self.sums.shape[1] // 2]

    @property
    def square(self) -> Floats:
        """G x D: the sum of their squares."""
        return self.sums[:, self.sums.shape[1] // 2 : -1]

    @classmethod
    def zero(cls, mixtures: GaussianMixtures) -> GmmStatistics:
        """Statistics of no frames."""
        return cls(
            sums=np.zeros((mixtures.gaussians, 2 * mixtures.means.shape[1] + 1)), loglike=0.0
        )

    def __add__(self, other: GmmStatistics) -> GmmStatistics:
        return GmmStatistics(sums=self.sums + other.sums, loglike=self.loglike + other.loglike)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianMixtures:
    """S mixtures of G Gaussians in all.

    Mixture s has Gaussians starts[s] to starts[s + 1] - 1, and

        log p(x | s) = log sum_g w_g N(x; m_g, v_g)
        log w_g N(x; m_g, v_g) = k_g + sum_d (m_gd / v_gd) x_d - (1 / 2 v_gd) x_d^2
        k_g = log w_g - 1/2 sum_d (log 2 pi v_gd + m_gd^2 / v_gd)

    so all Gaussians of some frames are one product of [x, x^2, 1] with a matrix.

    Attributes:
        starts: S + 1.
        weights: G; those of a mixture add up to 1.
        means: G x D.
        variances: G x D.
    """

    starts: NDArray[np.int64]
    weights: Floats
    means: Floats
    variances: Floats

    def check(self) -> None:
        """Checks mixtures that were read from a file.

        Raises:
            ValueError: The arrays do not fit together, or are no Gaussians.
        """
        starts, count = self.starts, len(self.weights)
        if starts.ndim != 1 or starts.dtype.kind != "i" or len(starts) < 2 or starts[0] != 0:
            raise ValueError("the mixtures are not numbered")
        if (starts[1:] <= starts[:-1]).any() or starts[-1] != count or self.weights.ndim != 1:
            raise ValueError("the mixtures do not fit the Gaussians")
        if self.means.shape != self.variances.shape or self.means.shape[:1] != (count,):
            raise ValueError("means and variances do not fit together")
        numbers = (self.weights, self.means, self.variances)
        if self.means.ndim != 2 or not all(np.isfinite(array).all() for array in numbers):
            raise ValueError("a Gaussian is not finite")
        if (self.weights <= 0).any() or (self.variances <= 0).any():
            raise ValueError("a Gaussian has a weight or variance of zero or less")

    @property
    def gaussians(self) -> int:
        """How many Gaussians there are."""
        return len(self.weights)

    def loglikes(self, frames: Frames, states: NDArray[np.int64] | None = None) -> Frames:
        """Log-likelihood of each frame in each of some states (all, if None): T x S."""
        if states is None:
            states = np.arange(len(self.starts) - 1)
        layout = _Layout(self.starts, states)
        made = np.empty((len(frames), len(states)), dtype=np.float32)
        matrix = np.ascontiguousarray(self._coefficients[:, layout.gaussians].T)
        block = max(_BLOCK_SCORES // len(matrix), 16)
        for first in range(0, len(frames), block):
            x = frames[first : first + block]
            scores = matrix @ _expanded(x).T
            logs = np.empty((len(states), len(x)), dtype=np.float32)
            for own, rows, size in layout.groups:
                each = scores[rows].reshape(size, -1, len(x))
                best = each.max(0)
                each -= best
                np.exp(each, out=each)
                np.log(each.sum(0), out=logs[own])
                logs[own] += best
            made[first : first + block, layout.order] = logs.T
        return made

    def accumulate(self, frames: Frames, states: NDArray[np.int64]) -> GmmStatistics:
        """Statistics of frames whose states are known.

        States with few frames are many, so those with as many Gaussians and about as many frames
        are worked on together, padded with rows of zeros.
        """
        total = GmmStatistics.zero(self)
        order = np.argsort(states, kind="stable")
        ends = np.searchsorted(states[order], np.arange(len(self.starts)))
        expanded = _expanded(frames[order])
        expanded = np.concatenate([expanded, np.zeros_like(expanded[:1])])
        counts, sizes = np.diff(ends), np.diff(self.starts)
        rows = 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
        loglike = 0.0
        for state in np.flatnonzero(rows > _BATCH_ROWS):
            own = np.arange(self.starts[state], self.starts[state + 1])[None]
            for first in range(ends[state], ends[state + 1], _BLOCK_FRAMES):
                x = expanded[first : min(first + _BLOCK_FRAMES, ends[state + 1])][None]
                loglike += self._add(total.sums, x, own)
        few = np.flatnonzero((counts > 0) & (rows <= _BATCH_ROWS))
        alike, which = np.unique(rows[few] * (sizes.max() + 1) + sizes[few], return_inverse=True)
        for number in range(len(alike)):
            members = few[which == number]
            k = np.arange(rows[members[0]])
            at = np.where(k < counts[members, None], ends[members, None] + k, len(frames))
            own = self.starts[members, None] + np.arange(sizes[members[0]])
            loglike += self._add(total.sums, expanded[at], own)
        return replace(total, loglike=loglike)

    def _add(self, sums: Floats, x: Frames, own: NDArray[np.int64]) -> float:
        """Adds up frames of several states, which have these Gaussians; their log-likelihood."""
        scores = x @ self._coefficients.T[own].transpose(0, 2, 1)
        best = scores.max(2, keepdims=True)
        shares = np.exp(scores - best)
        total = shares.sum(2, keepdims=True)
        shares /= total
        sums[own] += shares.transpose(0, 2, 1) @ x
        # The last column of a frame is 1, of a row of zeros 0.
        logs = (best + np.log(total))[..., 0] * x[..., -1]
        return float(logs.sum(dtype=np.float64))

    def update(self, statistics: GmmStatistics) -> GaussianMixtures:
        """The mixtures that fit the statistics best; a Gaussian with too few frames stays."""
        enough = statistics.count > 2.0
        count = np.maximum(statistics.count, 1e-10)[:, None]
        means = statistics.total / count
        variances = np.maximum(statistics.square / count - means**2, VARIANCE_FLOOR)
        held = np.maximum(statistics.count, 1e-3)
        sums = np.add.reduceat(held, self.starts[:-1])
        return GaussianMixtures(
            starts=self.starts,
            weights=held / np.repeat(sums, np.diff(self.starts)),
            means=np.where(enough[:, None], means, self.means),
            variances=np.where(enough[:, None], variances, self.variances),
        )

    def grow(self, target: int, count: Floats, random: np.random.Generator) -> GaussianMixtures:
        """Splits Gaussians until there are `target`, or too few frames for another.

        The next one always goes to the mixture with the largest occupancy^0.25 a Gaussian,
        provided that each of its Gaussians keeps 20 frames on average; within the mixture the
        heaviest Gaussian is split in two, 0.01 standard deviations to either side.

        Args:
            target: Gaussians in all.
            count: The frames that each Gaussian accounts for.
            random: Draws the directions.
        """
        frames = np.add.reduceat(count, self.starts[:-1])
        sizes = np.diff(self.starts)
        queue = [
            (-(n**_SPLIT_POWER) / k, s) for s, (n, k) in enumerate(zip(frames, sizes, strict=True))
        ]
        heapq.heapify(queue)
        room = target - self.gaussians
        while room > 0 and queue:
            _, s = heapq.heappop(queue)
            if frames[s] >= _FEWEST_FRAMES * (sizes[s] + 1):
                sizes[s] += 1
                room -= 1
                heapq.heappush(queue, (-(frames[s] ** _SPLIT_POWER) / sizes[s], s))
        starts = np.concatenate([[0], np.cumsum(sizes)])
        old = np.diff(self.starts)
        place = np.arange(self.gaussians) + np.repeat(starts[:-1] - self.starts[:-1], old)
        shape = int(starts[-1]), self.means.shape[1]
        weights, means, variances = np.zeros(shape[0]), np.zeros(shape), np.zeros(shape)
        weights[place], means[place], variances[place] = self.weights, self.means, self.variances
        for grown in np.flatnonzero(sizes > old):
            first = int(starts[grown])
            for new in range(first + int(old[grown]), int(starts[grown + 1])):
                heaviest = first + int(np.argmax(weights[first:new]))
                step = _SPLIT_STEP * np.sqrt(variances[heaviest])
                step = step * random.standard_normal(shape[1])
                weights[heaviest] /= 2
                weights[new], variances[new] = weights[heaviest], variances[heaviest]
                means[new] = means[heaviest] + step
                means[heaviest] -= step
        return GaussianMixtures(starts=starts, weights=weights, means=means, variances=variances)

    @cached_property
    def _coefficients(self) -> Frames:
        """Of each Gaussian those of x, x^2 and 1: (2D + 1) x G."""
        means, variances = self.means, self.variances
        spread = (np.log(2 * np.pi * variances) + means**2 / variances).sum(1)
        constant = np.log(self.weights) - 0.5 * spread
        rows = [means / variances, -0.5 / variances, constant[:, None]]
        return np.ascontiguousarray(np.concatenate(rows, axis=1).T, dtype=np.float32)


class _Layout:
    """The Gaussians of some states, in an order in which their likelihoods are quickly added.

    States with equally many Gaussians are together: first the first Gaussian of each, then the
    second of each. So a group is an array of Gaussians x states x frames, and what is done to
    it is done to long rows.
    """

    def __init__(self, starts: NDArray[np.int64], states: NDArray[np.int64]) -> None:
        sizes = starts[states + 1] - starts[states]
        self.order = np.argsort(sizes, kind="stable")
        self.groups: list[tuple[slice, slice, int]] = []
        """For each group its states in this order, the rows of its Gaussians, and a state's."""
        rows: list[NDArray[np.int64]] = []
        state = row = 0
        for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
            own = slice(state, state + int(count))
            first = starts[states[self.order[own]]]
            rows.append((first + np.arange(size)[:, None]).ravel())
            self.groups.append((own, slice(row, row + len(rows[-1])), int(size)))
            state, row = own.stop, row + len(rows[-1])
        self.gaussians = np.concatenate(rows)


def _expanded(frames: Frames) -> Frames:
    """Each frame, its squares and 1."""
    one = np.ones((len(frames), 1), dtype=np.float32)
    return np.concatenate([frames, frames * frames, one], axis=1, dtype=np.float32)
