"""Mixtures of diagonal Gaussians, one a state, all in flat arrays."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Frames = NDArray[np.float32]

VARIANCE_FLOOR = 1e-4
_FEWEST_FRAMES = 20.0
_SPLIT_POWER = 0.25
_SPLIT_STEP = 0.01
_BLOCK = 2048


@dataclass(frozen=True, kw_only=True, eq=False)
class GmmStatistics:
    """What re-estimation needs of some frames, for each of G Gaussians in D dimensions.

    Attributes:
        count: G: the frames that each accounts for.
        total: G x D: their sum.
        square: G x D: the sum of their squares.
        loglike: The frames' log-likelihood, summed.
    """

    count: Floats
    total: Floats
    square: Floats
    loglike: float

    def __add__(self, other: GmmStatistics) -> GmmStatistics:
        return GmmStatistics(
            count=self.count + other.count,
            total=self.total + other.total,
            square=self.square + other.square,
            loglike=self.loglike + other.loglike,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianMixtures:
    """S mixtures of G Gaussians in all.

    Mixture s has Gaussians starts[s] to starts[s + 1] - 1, and

        log p(x | s) = log sum_g w_g N(x; m_g, v_g)
        log w_g N(x; m_g, v_g) = k_g + sum_d (m_gd / v_gd) x_d - (1 / 2 v_gd) x_d^2
        k_g = log w_g - 1/2 sum_d (log 2 pi v_gd + m_gd^2 / v_gd)

    so all Gaussians of some frames are one product of [x, x^2] with a matrix.

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

    def loglikes(self, frames: Frames) -> Frames:
        """Log-likelihood of each frame in each state: T x S."""
        matrix, constant = self._coefficients(slice(None))
        made = np.empty((len(frames), len(self.starts) - 1), dtype=np.float32)
        sizes = np.diff(self.starts)
        for first in range(0, len(frames), _BLOCK):
            block = frames[first : first + _BLOCK]
            scores = np.concatenate([block, block**2], axis=1) @ matrix + constant
            best = np.maximum.reduceat(scores, self.starts[:-1], axis=1)
            scores -= np.repeat(best, sizes, axis=1)
            np.exp(scores, out=scores)
            sums = np.add.reduceat(scores, self.starts[:-1], axis=1)
            made[first : first + _BLOCK] = best + np.log(sums)
        return made

    def accumulate(self, frames: Frames, states: NDArray[np.int64]) -> GmmStatistics:
        """Statistics of frames whose states are known."""
        count = np.zeros(self.gaussians)
        total, square = np.zeros(self.means.shape), np.zeros(self.means.shape)
        loglike = 0.0
        order = np.argsort(states, kind="stable")
        ends = np.searchsorted(states[order], np.arange(len(self.starts)))
        for state in np.flatnonzero(np.diff(ends)):
            own = slice(self.starts[state], self.starts[state + 1])
            x = frames[order[ends[state] : ends[state + 1]]]
            squared = x**2
            matrix, constant = self._coefficients(own)
            scores = np.concatenate([x, squared], axis=1) @ matrix + constant
            best = scores.max(1, keepdims=True)
            shares = np.exp(scores - best).astype(np.float64)
            sums = shares.sum(1, keepdims=True)
            loglike += float(best.sum(dtype=np.float64) + np.log(sums).sum())
            shares /= sums
            count[own] = shares.sum(0)
            total[own], square[own] = shares.T @ x, shares.T @ squared
        return GmmStatistics(count=count, total=total, square=square, loglike=loglike)

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
        pieces = [
            self._split(slice(*self.starts[s : s + 2]), size, random)
            for s, size in enumerate(sizes)
        ]
        weights, means, variances = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return GaussianMixtures(
            starts=np.concatenate([[0], np.cumsum(sizes)]),
            weights=weights,
            means=means,
            variances=variances,
        )

    def _split(
        self, own: slice, size: int, random: np.random.Generator
    ) -> tuple[Floats, Floats, Floats]:
        weights = list(self.weights[own])
        means, variances = list(self.means[own]), list(self.variances[own])
        while len(weights) < size:
            heaviest = int(np.argmax(weights))
            step = (
                _SPLIT_STEP * np.sqrt(variances[heaviest]) * random.standard_normal(len(means[0]))
            )
            weights[heaviest] /= 2
            weights.append(weights[heaviest])
            means.append(means[heaviest] + step)
            means[heaviest] = means[heaviest] - step
            variances.append(variances[heaviest])
        return np.array(weights), np.array(means), np.array(variances)

    def _coefficients(self, own: slice) -> tuple[Frames, Frames]:
        """The matrix, 2D x Gaussians, and the constants k."""
        means, variances = self.means[own], self.variances[own]
        matrix = np.concatenate([means / variances, -0.5 / variances], axis=1).T
        spread = (np.log(2 * np.pi * variances) + means**2 / variances).sum(1)
        constant = np.log(self.weights[own]) - 0.5 * spread
        return np.ascontiguousarray(matrix, dtype=np.float32), constant.astype(np.float32)
