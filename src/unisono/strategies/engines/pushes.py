"""What a learner sends to a server's shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from unisono.fabric import Address, Precision, Vector
from unisono.strategies.base import TrainedWork
from unisono.strategies.engines.shards import Run


class ServerSettings(Protocol):
    """What a participant must know."""

    @property
    def push_every(self) -> int:
        """Minibatches a push."""

    @property
    def overlap(self) -> bool:
        """Whether to compute on while a push is under way."""

    @property
    def bound(self) -> int:
        """Staleness beyond which a push is dropped; 0: none."""

    @property
    def shards(self) -> int:
        """Pieces of the model."""

    @property
    def precision(self) -> Precision:
        """Of updates and parameters on their way."""

    @property
    def warm_start(self) -> float:
        """Share of all minibatches, at the start, that one learner trains alone."""

    def staleness(self, learners: int) -> int:
        """What equal learners come to."""


@dataclass
class Push:
    """An update on its way to the shards; without one, only a pull."""

    number: int
    update: Vector | None
    """What the shards apply: a gradient, a change of the parameters, or the parameters."""
    work: TrainedWork
    rates: Sequence[float]
    progress: float
    version: int
    missing: set[int]
    sent: dict[Run, Address] = field(default_factory=dict)
    decided: bool = True
    """Whether it is known that it is not dropped."""
    stale: int = 0
