"""What can go wrong in a simulated cluster, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kill:
    """kill -9 of a learner."""

    at: float
    number: int


@dataclass(frozen=True)
class KillCoordinator:
    """kill -9 of the coordinator, which comes back from its journal."""

    at: float
    back_after: float = 1.0


@dataclass(frozen=True)
class Pause:
    """SIGSTOP of a learner, and SIGCONT."""

    at: float
    number: int
    seconds: float


@dataclass(frozen=True)
class Cut:
    """A learner and the coordinator do not reach each other for a while."""

    at: float
    number: int
    seconds: float


@dataclass(frozen=True)
class Join:
    """A learner that comes late."""

    at: float
    number: int


@dataclass(frozen=True)
class Partition:
    """Some learners and the others do not reach each other for a while."""

    at: float
    numbers: Sequence[int]
    seconds: float
    with_coordinator: bool = False
    """Whether the coordinator is on the side of these learners."""


Fault = Kill | KillCoordinator | Pause | Cut | Join


@dataclass
class Straggler:
    """A learner that is slow at times.

    Attributes:
        factor: how many times longer a minibatch takes then.
        share: of the minibatches, drawn at random; None: all.
        start: seconds before it begins.
        length: seconds of a burst; None: it does not end.
        period: seconds from the begin of a burst to the next one; None: there is one.
        source: of the draws.
    """

    factor: float
    share: float | None
    start: float
    length: float | None
    period: float | None
    source: random.Random

    def slowness(self, now: float) -> float:
        """How many times longer the minibatch takes that begins now."""
        elapsed = now - self.start
        if self.period is not None and elapsed >= 0:
            elapsed %= self.period
        if elapsed < 0 or (self.length is not None and elapsed >= self.length):
            return 1.0
        if self.share is not None and self.source.random() >= self.share:
            return 1.0
        return self.factor


@dataclass(frozen=True)
class Disturbances:
    """All that goes wrong in a cluster.

    Attributes:
        stragglers: learners that are slow at times, by number.
        late: learners that are not there at the start; a ``Join`` starts each.
        faults: at given times.
        random_faults: without an end, in the order of time.
    """

    stragglers: Mapping[int, Straggler] = field(default_factory=dict)
    late: frozenset[int] = frozenset()
    faults: Sequence[Fault | Partition] = ()
    random_faults: Iterator[Fault | Partition] = field(default_factory=lambda: iter(()))
