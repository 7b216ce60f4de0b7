"""What toy learners learn. Each loss makes one kind of mistake visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.fabric import Address

INCARNATIONS = 4
"""Incarnations of one learner that ``Marks`` can tell apart."""


class Loss(Protocol):
    """Gradients as a function of where the learner is, what it trains, and who it is."""

    @property
    def dimension(self) -> int:
        """How many parameters there are."""

    def start(self, number: int) -> torch.Tensor:
        """Where a learner begins, before it gets the state of the others."""

    def load(self, position: int) -> torch.Tensor:
        """The data of a position."""

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        """The gradient at ``x``; ``step`` counts the learner's own steps."""


class _Apart:
    """Learners begin apart, so that a suite sees whether newcomers get their state."""

    dimension: int

    def start(self, number: int) -> torch.Tensor:
        """All coordinates are the learner's number."""
        return torch.full((self.dimension,), float(number), dtype=torch.float64)


def _random(seed: int, dimension: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(dimension, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class Targets(_Apart):
    """Position p asks for the point t_p, a fixed pseudo-random one: |x - t_p|^2 / 2.

    Where the learner ends depends on which positions went in, in which order, and how often.
    ``distance`` is how far the points are apart.
    """

    dimension: int = 5
    distance: float = 1.0

    def load(self, position: int) -> torch.Tensor:
        return self.distance * _random(1000 + position, self.dimension)

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        return x - data


@dataclass(frozen=True)
class OneTarget(_Apart):
    """All positions ask for the same point: equal data, no noise."""

    dimension: int = 5

    def load(self, position: int) -> torch.Tensor:
        return _random(999, self.dimension)

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        return x - data


@dataclass(frozen=True)
class Throw(_Apart):
    """A learner's first step throws it ``distance`` away, each to another side; then all is flat.

    What happens after the throw is the strategy's doing alone.
    """

    distance: float
    dimension: int = 5

    def load(self, position: int) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.float64)

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        """One throw, then zero."""
        if step > 0:
            return torch.zeros_like(x)
        return self.distance * _random(500 + who.number, self.dimension)


@dataclass(frozen=True)
class Marks:
    """A step on position p by one life of one learner adds 1 to the coordinate of both.

    So the consensus says of each position by whose steps it came in, whatever was averaged: with
    learning rate ``rate`` the gradient is -1 / rate there, and zero everywhere else.
    """

    total: int
    learners: int
    rate: float
    alike: bool = False
    """Whether learners begin with the same parameters, and need no state of each other."""

    @property
    def dimension(self) -> int:
        """A coordinate for each position and each life of each learner, and one for its number."""
        return self.total * self.learners * INCARNATIONS + 1

    def start(self, number: int) -> torch.Tensor:
        """No marks; the last coordinate is the learner's number, unless all begin alike."""
        start = torch.zeros(self.dimension, dtype=torch.float64)
        start[-1] = 0 if self.alike else number
        return start

    def load(self, position: int) -> torch.Tensor:
        return torch.tensor(position)

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        gradient = torch.zeros_like(x)
        incarnation = who.number * INCARNATIONS + who.incarnation
        gradient[:-1].view(self.total, -1)[int(data), incarnation] = -1 / self.rate
        return gradient

    def read(self, consensus: NDArray[np.float64]) -> NDArray[np.float64]:
        """The marks as a table: a row a position, a column a life."""
        return consensus[:-1].reshape(self.total, -1)
