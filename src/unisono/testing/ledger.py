"""Records what a strategy does to a learner, call by call."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unisono.fabric import TensorVector, Vector
from unisono.pool.ranges import Range
from unisono.strategies.base import (
    Participant,
    Replica,
    Snapshot,
    StateBundle,
    Strategy,
    TrainedWork,
)

Numbers = NDArray[np.float64]


def numbers(vector: Vector) -> Numbers:
    """A copy of the values."""
    assert isinstance(vector, TensorVector)
    return vector.tensor.numpy().astype(np.float64)


class Kind(Enum):
    """What happened."""

    BEGIN = "begin"
    """An incarnation begins, or takes over a donor's state: the vector is the parameters."""
    STEP = "step"
    """An optimizer step: the vector is the change."""
    SNAPSHOT = "snapshot"
    """Parameters plus pending deltas were taken."""
    ADD = "add"
    """A delta was handed in."""
    REPLACE = "replace"
    """The parameters were set."""
    GRADIENT = "gradient"
    """The gradient was taken."""
    SET_GRADIENT = "set gradient"
    """The gradient was set."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    kind: Kind
    round: int
    """The participant's rounds so far."""
    vector: Numbers
    weight: int = 0
    """Examples in a snapshot or a gradient."""
    ranges: tuple[Range, ...] = ()
    """Positions in a snapshot."""


@dataclass
class Exchange:
    """One act of sharing at one learner: what it gave, and how far the answer moved it."""

    round: int
    gave: Numbers
    weight: int
    moved: Numbers
    ranges: tuple[Range, ...]


@dataclass
class Ledger:
    """The entries of one learner, over all its incarnations."""

    entries: list[Entry] = field(default_factory=list)

    def write(
        self, kind: Kind, vector: Vector, round_: int = 0, work: TrainedWork | None = None
    ) -> None:
        """Adds an entry with a copy of the vector."""
        weight = 0 if work is None else work.examples
        ranges = () if work is None else tuple(work.ranges)
        self.entries.append(Entry(kind, round_, numbers(vector), weight, ranges))

    def exchanges(self) -> list[Exchange]:
        """What was sent, each with all that came back before the next was sent."""
        found: list[Exchange] = []
        for entry in self.entries:
            if entry.kind in (Kind.SNAPSHOT, Kind.GRADIENT):
                nothing = np.zeros_like(entry.vector)
                found.append(
                    Exchange(entry.round, entry.vector, entry.weight, nothing, entry.ranges)
                )
            elif entry.kind is Kind.ADD and found:
                found[-1].moved = found[-1].moved + entry.vector
            elif entry.kind in (Kind.REPLACE, Kind.SET_GRADIENT) and found:
                found[-1].moved = entry.vector - found[-1].gave
        return found


class LedgerReplica:
    """A replica that records what its strategy asks of it."""

    def __init__(self, replica: Replica, ledger: Ledger) -> None:
        self._replica = replica
        self._ledger = ledger
        self.participant: Participant | None = None
        self.work = TrainedWork()
        """What the current gradient was computed on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    @property
    def _round(self) -> int:
        return 0 if self.participant is None else self.participant.rounds

    def snapshot(self) -> Snapshot:
        snapshot = self._replica.snapshot()
        self._ledger.write(Kind.SNAPSHOT, snapshot.vector, self._round, snapshot.work)
        return snapshot

    def add(self, delta: Vector) -> None:
        """Records the values at the time of the call."""
        # The vector is the replica's from the call on, which may change it.
        copy = delta.copy()
        self._replica.add(delta)
        self._ledger.write(Kind.ADD, copy, self._round)

    def replace(self, value: Vector) -> None:
        self._replica.replace(value)
        self._ledger.write(Kind.REPLACE, value, self._round)

    def gradient(self) -> Vector:
        gradient = self._replica.gradient()
        self._ledger.write(Kind.GRADIENT, gradient, self._round, self.work)
        return gradient

    def set_gradient(self, value: Vector) -> None:
        self._replica.set_gradient(value)
        self._ledger.write(Kind.SET_GRADIENT, value, self._round)

    def take_over(self, bundle: StateBundle) -> None:
        parameters = bundle.vectors["parameters"].copy()
        self._replica.take_over(bundle)
        self._ledger.write(Kind.BEGIN, parameters)


class Ledgered:
    """A strategy whose participants see their learner through a ``LedgerReplica``."""

    def __init__(self, strategy: Strategy, ledger: Ledger) -> None:
        self._strategy = strategy
        self._ledger = ledger
        self.replica: LedgerReplica | None = None

    def __repr__(self) -> str:
        return repr(self._strategy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def participant(self, replica: Replica) -> Participant:
        self.replica = LedgerReplica(replica, self._ledger)
        participant = self._strategy.participant(cast("Replica", self.replica))
        self.replica.participant = participant
        return participant
