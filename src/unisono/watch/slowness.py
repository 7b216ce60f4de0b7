"""Which learner is slow, and which link."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from unisono.watch.learner_state import LearnerState

SLOW = 0.67
"""Times the median speed of the others below which a learner is called slow."""
FAST_AGAIN = 0.75
"""The same above which it no longer is."""
LINK_S = 30.0
"""Seconds for which what was measured on a link counts."""
REPLACED_S = 6.0
"""The same once its sender has reported another link as its slowest."""


@dataclass(frozen=True)
class SlowLearner:
    """A learner that computes slower than the others.

    Attributes:
        learner: its number.
        speed: examples a second of computing.
        ratio: of that to the median of the others.
        since: when it was first found to be slow.
    """

    learner: int
    speed: float
    ratio: float
    since: float


class SlowLearners:
    """Compares the learners' speeds again and again."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def find(self, learners: Iterable[LearnerState], now: float) -> list[SlowLearner]:
        """Those that are slow now, the slowest first."""
        speeds = {
            learner.number: speed
            for learner in learners
            if learner.is_here and (speed := learner.speed(now)) is not None
        }
        found = []
        for number, speed in speeds.items():
            ratio = compared(number, speeds)
            if ratio is not None and ratio < (FAST_AGAIN if number in self._since else SLOW):
                since = self._since.setdefault(number, now)
                found.append(SlowLearner(number, speed, ratio, since))
        slow = {each.learner for each in found}
        self._since = {n: since for n, since in self._since.items() if n in slow}
        return sorted(found, key=lambda each: each.ratio)


def compared(number: int, speeds: dict[int, float]) -> float | None:
    """A learner's speed over the median of the others; None: there is nothing to compare."""
    others = [speed for other, speed in speeds.items() if other != number]
    median = statistics.median(others) if others else 0.0
    return speeds[number] / median if median > 0 else None


@dataclass(frozen=True)
class MeasuredLink:
    """How fast a link over a network was when it was last used.

    Attributes:
        sender: as people call it, such as `learner 0`.
        receiver: the same.
        rate: bytes a second.
        time: when it was measured.
    """

    sender: str
    receiver: str
    rate: float
    time: float


class Links:
    """What learners have reported of their slowest links."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], MeasuredLink] = {}
        self._reported: dict[str, float] = {}
        """When each sender has last reported a link."""

    def measured(
        self, sender: str, receiver: str, nbytes: float, seconds: float, time: float
    ) -> None:
        """Adds a measurement: bytes sent in so many seconds."""
        if seconds > 0:
            link = MeasuredLink(sender, receiver, nbytes / seconds, time)
            self._links[sender, receiver] = link
            self._reported[sender] = time

    def slowest(self, now: float) -> list[MeasuredLink]:
        """Those measured of late, the slowest first."""
        late = [link for link in self._links.values() if link.time >= now - self._counts_for(link)]
        return sorted(late, key=lambda link: link.rate)

    def _counts_for(self, link: MeasuredLink) -> float:
        return LINK_S if self._reported[link.sender] <= link.time else REPLACED_S
