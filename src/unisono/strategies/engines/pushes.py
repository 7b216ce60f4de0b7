"""What a learner sends to a server's shards."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from unisono.fabric import Address, Precision, Vector
from unisono.strategies.base import TrainedWork
from unisono.strategies.engines.shards import Run


class PushKind(str, Enum):
    """What a push contains."""

    CHANGE = "change"
    """The change of the parameters by the learner's own optimizer steps since its last push."""
    GRADIENT = "gradient"
    """The mean gradient since its last push; the shards take the optimizer steps."""


class ServerSettings(Protocol):
    """What a participant must know."""

    @property
    def push(self) -> PushKind:
        """What a push contains."""
        ...

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

    @property
    def precision(self) -> Precision:
        """Of updates and parameters on their way."""
        ...

    @property
    def warm_start(self) -> float:
        """Share of all minibatches, at the start, that one learner trains alone."""
        ...

    def staleness(self, learners: int) -> int:
        """What equal learners come to."""
        ...


@dataclass
class Push:
    """An update on its way to the shards; without one, only a pull."""

    number: int
    update: Vector | None
    """What the shards apply: a gradient, or a change of the parameters."""
    work: TrainedWork
    rates: list[float]
    progress: float
    version: int
    missing: set[int]
    sent: dict[Run, Address] = field(default_factory=dict)
    decided: bool = True
    """Whether it is known that it is not dropped."""
    stale: int = 0
