"""When each learner of a simulated run computes, and when vectors are on their way from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from unisono.fabric import Address
from unisono.simulation.hosts import Hosts
from unisono.simulation.network import SHORT, HostNetwork

MOST_LEARNERS = 16
"""Learners that are noted; the others are left out."""

Span = tuple[float, float]
"""Begin and end, in seconds."""


@dataclass
class Timeline:
    """What the first learners did.

    Attributes:
        computing: spans of each learner, in order; minibatches without a pause are one.
        exchanging: spans in which a vector was on its way from each learner.
    """

    computing: dict[int, list[Span]] = field(default_factory=dict)
    exchanging: dict[int, list[Span]] = field(default_factory=dict)

    def computed(self, number: int, begin: float, end: float) -> None:
        """A learner has computed a minibatch."""
        if number < MOST_LEARNERS:
            _append(self.computing.setdefault(number, []), begin, end)

    def sent(self, number: int, begin: float, end: float) -> None:
        """A learner sends a vector."""
        if number < MOST_LEARNERS:
            _append(self.exchanging.setdefault(number, []), begin, end)


class NotedNetwork(HostNetwork):
    """The same network, with a timeline of what learners send."""

    def __init__(self, hosts: Hosts, timeline: Timeline) -> None:
        super().__init__(hosts)
        self._timeline = timeline

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way of a message that is sent now."""
        seconds = super().delay(sender, receiver, nbytes, now)
        if nbytes > SHORT and sender.role == "learner":
            self._timeline.sent(sender.number, now, now + seconds)
        return seconds


def _append(spans: list[Span], begin: float, end: float) -> None:
    if spans and begin <= spans[-1][1] + 1e-9:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
    else:
        spans.append((begin, end))
