"""A learner's gradients on their way to a server's shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from unisono.fabric import Address, Vector
from unisono.strategies.base import TrainedWork
from unisono.strategies.engines.shards import Run


class ServerSettings(Protocol):
    """What a participant must know."""

    @property
    def push_every(self) -> int:
        """Minibatches a push."""
        ...

    @property
    def overlap(self) -> bool:
        """Whether to compute on while a push is under way."""
        ...

    @property
    def bound(self) -> int:
        """Staleness beyond which a push is dropped; 0: none."""
        ...

    @property
    def shards(self) -> int:
        """Pieces of the model."""
        ...

    def staleness(self, learners: int) -> int:
        """What equal learners come to."""
        ...


@dataclass
class Push:
    """Gradients on their way to the shards; without any, only a pull."""

    number: int
    gradient: Vector | None
    work: TrainedWork
    rates: list[float]
    progress: float
    version: int
    missing: set[int]
    sent: dict[Run, Address] = field(default_factory=dict)
    decided: bool = True
    """Whether it is known that it is not dropped."""
    stale: int = 0
