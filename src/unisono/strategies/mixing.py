"""How fast exchanges bring learners together, from their mixing matrices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
_MOST_EXACT = 64
"""The distance is printed for up to so many learners; for more it takes long to compute."""


def pair(learners: int, i: int, j: int) -> Matrix:
    """The mixing matrix of one exchange: W = I - (e_i - e_j)(e_i - e_j)^T / 2."""
    matrix = np.eye(learners)
    matrix[np.ix_([i, j], [i, j])] = 0.5
    return matrix


@dataclass(frozen=True)
class Mixing(ABC):
    """The effect of exchanges on the distance between learners, if all that are due take place."""

    learners: int

    @property
    @abstractmethod
    def gap(self) -> float:
        """1 - lambda_2 of the mixing matrix; 1 for a learner alone."""

    @property
    @abstractmethod
    def kept(self) -> float:
        """The share of the squared distance that is left when each learner has had its exchange."""

    @property
    @abstractmethod
    def distance(self) -> float:
        """The predicted distance from the mean, in moves of one learner between two exchanges."""

    @property
    @abstractmethod
    def shape(self) -> str:
        """Who exchanges with whom, in words."""

    def realised(self, share: float) -> float:
        """``kept`` if only a share of the exchanges that are due take place."""
        return float(self.kept**share)

    def explain(self) -> list[str]:
        """The lines that are printed when a run starts."""
        if self.learners == 1:
            return []
        lines = [
            f"mixing    {self.shape}, spectral gap {self.gap:.3g}: when each learner has had its "
            f"exchange, the squared distance is {self.kept:.2g} of what it was"
        ]
        if self.learners <= _MOST_EXACT:
            lines.append(
                f"distance  {self.distance:.2f} times what a learner moves between two exchanges "
                "(predicted, from the consensus)"
            )
        return lines


@dataclass(frozen=True)
class PairMixing(Mixing):
    """Exchanges along edges, each as likely as every other.

    One exchange multiplies the models X (a row a learner) by W = ``pair(n, i, j)``, a symmetric
    projection with row and column sums 1: the mean stays, and with e = X - mean

        E |e'|^2 = E e^T W^T W e = e^T E[W] e <= lambda_2 |e|^2,

    where lambda_2 is the second largest eigenvalue of E[W]: the squared distance from the mean
    shrinks at least by the *gap* 1 - lambda_2 an exchange, on average.

    While learners train, each moves by delta (root mean square, in its own direction) between two
    exchanges that it begins; so n exchanges meet n moves. The second moments C = E[e e^T] settle at

        C = mean over edges of W C W + (delta^2 / n) (I - 1 1^T / n)

    and the distance of a learner from the mean is sqrt(tr C / n). On a complete graph all modes are
    alike, lambda_2 = 1 - 1 / (n - 1), and the distance is delta (n - 1) / n; on a ring
    lambda_2 = 1 - (1 - cos(2 pi / n)) / n, and the distance grows with n.
    """

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
        if self.learners == 1:
            return 1.0
        return float(1 - np.sort(np.linalg.eigvalsh(self.expected))[-2])

    @property
    def distance(self) -> float:
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

    @property
    def kept(self) -> float:
        """After as many exchanges as there are learners."""
        return float((1 - self.gap) ** self.learners)

    @property
    def shape(self) -> str:
        return f"pairs, {len(self.edges)} edges"


@dataclass(frozen=True)
class NeighbourMixing(Mixing):
    """Every learner with both neighbours of a ring at once, weights 1/3, 1/3, 1/3.

    An exchange of all multiplies the models X by T, T[i, i] = T[i, i - 1] = T[i, i + 1] = 1/3, a
    circulant with the eigenvalues

        lambda_k = (1 + 2 cos(2 pi k / n)) / 3,    k = 0 ... n - 1;

    two learners have T = 1/2 everywhere, three 1/3. With e = X - mean, |e'|^2 <= lambda_2^2 |e|^2.
    If each learner moves by delta between two exchanges, C = T C T + delta^2 (I - 1 1^T / n), and
    the distance is delta sqrt(sum over k > 0 of 1 / (1 - lambda_k^2) / n).
    """

    @cached_property
    def matrix(self) -> Matrix:
        n = self.learners
        if n < 3:
            return np.full((n, n), 1 / n)
        near = np.eye(n)
        return (near + np.roll(near, 1, axis=0) + np.roll(near, -1, axis=0)) / 3

    @cached_property
    def _others(self) -> Matrix:
        """All eigenvalues but that of the mean."""
        return np.sort(np.linalg.eigvalsh(self.matrix))[:-1]

    @property
    def gap(self) -> float:
        """1 - lambda_2, with the second largest absolute value."""
        return 1.0 if self.learners == 1 else float(1 - np.abs(self._others).max())

    @property
    def kept(self) -> float:
        return (1 - self.gap) ** 2

    @property
    def distance(self) -> float:
        return math.sqrt(float((1 / (1 - self._others**2)).sum()) / self.learners)

    @property
    def shape(self) -> str:
        return "both neighbours of a ring"


def ring(learners: int) -> PairMixing:
    """Neighbours on a ring; two learners have one edge."""
    edges = {(min(i, j), max(i, j)) for i in range(learners) for j in [(i + 1) % learners]}
    return PairMixing(learners, sorted(edge for edge in edges if edge[0] != edge[1]))


def complete(learners: int) -> PairMixing:
    """All pairs, which rings drawn for each exchange amount to."""
    return PairMixing(learners, [(i, j) for i in range(learners) for j in range(i)])
