"""How fast exchanges of two bring learners together: mixing matrices and what follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
_MOST_EXACT = 64
"""Learners up to which the distance is computed; beyond, it takes too long for a line of text."""


def pair(learners: int, i: int, j: int) -> Matrix:
    """The mixing matrix of one exchange: W = I - (e_i - e_j)(e_i - e_j)^T / 2."""
    matrix = np.eye(learners)
    matrix[np.ix_([i, j], [i, j])] = 0.5
    return matrix


@dataclass(frozen=True)
class Mixing:
    """Exchanges along edges, each as likely as every other.

    One exchange multiplies the models X (a row a learner) by W = ``pair(n, i, j)``, a symmetric
    projection with row and column sums 1: the mean stays, and with e = X - mean

        E |e'|^2 = E e^T W^T W e = e^T E[W] e <= lambda_2 |e|^2,

    where lambda_2 is the second largest eigenvalue of E[W]: the squared distance from the mean
    shrinks at least by the *gap* 1 - lambda_2 an exchange, on average.

    While learners train, each moves by delta (root mean square, in its own direction) between two
    exchanges that it begins; so n exchanges meet n moves. The second moments C = E[e e^T] commit at

        C = mean over edges of W C W + (delta^2 / n) (I - 1 1^T / n)

    and the distance of a learner from the mean is sqrt(tr C / n). On a complete graph all modes are
    alike, lambda_2 = 1 - 1 / (n - 1), and the distance is delta (n - 1) / n; on a ring
    lambda_2 = 1 - (1 - cos(2 pi / n)) / n, and the distance grows with n.
    """

    learners: int
    edges: Sequence[tuple[int, int]]

    @cached_property
    def expected(self) -> Matrix:
        """E[W], the mean of the mixing matrices of all edges."""
        n = self.learners
        total = np.zeros((n, n))
        for i, j in self.edges:
            total += pair(n, i, j)
        return total / len(self.edges) if self.edges else np.eye(n)

    @property
    def gap(self) -> float:
        """1 - lambda_2 of E[W]; 1 for a learner alone."""
        if self.learners == 1:
            return 1.0
        return float(1 - np.sort(np.linalg.eigvalsh(self.expected))[-2])

    @property
    def distance(self) -> float:
        """The predicted distance from the mean, in moves of one learner between two exchanges."""
        n = self.learners
        if n == 1:
            return 0.0
        # By symmetry C is a function of the distance on the ring: C[i, j] = c[(j - i) mod n].
        # The map of the matrices of that form, as a matrix on c, is solved for its fixed point.
        step = np.zeros((n, n))
        place = (np.arange(n)[None, :] - np.arange(n)[:, None]) % n
        for k in range(n):
            base = (place == k).astype(float)
            mixed = np.zeros((n, n))
            for i, j in self.edges:
                half = base.copy()
                half[[i, j]] = (base[i] + base[j]) / 2
                mean = (half[:, i] + half[:, j]) / 2
                half[:, i], half[:, j] = mean, mean
                mixed += half
            mixed /= len(self.edges)
            for d in range(n):
                step[d, k] = mixed[place == d].mean()
        noise = -np.full(n, 1 / n**2)
        noise[0] += 1 / n
        # The mean does not move and is not in C: the fixed point with sum zero.
        solution = np.linalg.lstsq(np.eye(n) - step, noise, rcond=None)[0]
        solution -= solution.mean()
        return math.sqrt(max(solution[0], 0.0))

    def explain(self) -> list[str]:
        """The lines that are printed when a run starts."""
        if self.learners == 1:
            return []
        kept = (1 - self.gap) ** self.learners
        lines = [
            f"mixing    pairs, {len(self.edges)} edges, spectral gap {self.gap:.3g}: when all have "
            f"begun one exchange, the squared distance is {kept:.2g} of what it was"
        ]
        if self.learners <= _MOST_EXACT:
            lines.append(
                f"distance  {self.distance:.2f} times what a learner moves between two exchanges "
                "(predicted, from the consensus)"
            )
        return lines


def ring(learners: int) -> Mixing:
    """Neighbours on a ring; two learners have one edge."""
    edges = {(min(i, j), max(i, j)) for i in range(learners) for j in [(i + 1) % learners]}
    return Mixing(learners, sorted(edge for edge in edges if edge[0] != edge[1]))


def complete(learners: int) -> Mixing:
    """All pairs: what a ring drawn anew for each exchange comes to."""
    return Mixing(learners, [(i, j) for i in range(learners) for j in range(i)])
