"""What can go wrong in a simulated cluster, and when."""

from __future__ import annotations

from dataclasses import dataclass


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


Fault = Kill | KillCoordinator | Pause | Cut | Join
