"""The event that the coordinator writes once a second: leases, and slow or silent learners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from unisono.coordinator.pace import Pace
from unisono.fabric.address import Address
from unisono.pool.pool import Pool

PERIOD = 1.0
"""Seconds between two ``status`` events."""
LONG_S = 0.5
"""Phases shorter than so many seconds are not reported."""


class Doing(Enum):
    """What a learner's own thread is doing."""

    COMPUTING = "computing"
    DATA = "data"
    """Waiting for a minibatch to be leased or loaded."""
    OTHERS = "others"
    """Waiting for other learners, or for what they send."""


@dataclass(frozen=True)
class LinkRate:
    """Traffic on a learner's slowest network link since the last heartbeat."""

    receiver: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Phase:
    """What a learner is doing, and for how long."""

    doing: Doing
    seconds: float
    link: LinkRate | None = None


class Status:
    """Collects what heartbeats report between two ``status`` events.

    Args:
        tell: writes an event of the metrics.
        beat: seconds between two heartbeats of a learner.
    """

    def __init__(self, tell: Callable[[str, dict[str, Any]], None], beat: float) -> None:
        self._tell = tell
        self._late = 1.5 * beat
        self._told: float | None = None
        self._phases: dict[Address, Phase] = {}
        self._paces = 0
        """How many choices of the pace are written."""

    def heard(self, who: Address, phase: Phase | None) -> None:
        if phase is not None:
            self._phases[who] = phase

    def is_due(self, now: float) -> bool:
        """Whether it is time for the next event."""
        return self._told is None or now - self._told >= PERIOD

    def tell(self, now: float, pool: Pool, seen: dict[Address, float], pace: Pace) -> None:
        """Writes the event, and before it each new choice of the pace with dynamic sharding.

        Args:
            now: by the clock of ``seen``.
            pool: of the run.
            seen: when each member was last heard of.
            pace: of the run; with static sharding a learner writes it, at the round itself.
        """
        self._told = now
        if pace.adaptive and pace.overlapped:
            for round_, share in pace.schedule[self._paces :]:
                self._tell("pace", {"learner": None, "round": round_, "minibatches": share})
            self._paces = len(pace.schedule)
        phases, self._phases = self._phases, {}
        counts = pool.counts
        fields: dict[str, Any] = {
            "learner": None,
            "total": pool.total,
            "free": pool.free,
            "leased": sum(len(held) for held in pool.held.values()),
            "committed": len(pool.committed),
            "returned": counts.returned,
            "redone": counts.redone,
            "skipped": counts.skipped,
            "dropped": counts.dropped,
            "silent": {str(a.number): now - t for a, t in seen.items() if now - t > self._late},
            "phases": {
                str(a.number): _plain(phase)
                for a, phase in phases.items()
                if a in seen and (phase.seconds > LONG_S or phase.link is not None)
            },
        }
        self._tell("status", fields)


def whose(who: Address) -> dict[str, int | None]:
    """What an event says of the learner, or the server, that it is about."""
    return {"learner": None, "server": who.number} if who.serves else {"learner": who.number}


def _plain(phase: Phase) -> dict[str, Any]:
    plain: dict[str, Any] = {"doing": phase.doing.value, "seconds": phase.seconds}
    if phase.link is not None:
        link = phase.link
        plain["link"] = {"receiver": link.receiver, "bytes": link.bytes, "seconds": link.seconds}
    return plain
