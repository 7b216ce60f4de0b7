"""How much learners send at once, in a simulated cluster."""

from __future__ import annotations

from collections import defaultdict

from unisono.fabric import Address
from unisono.simulation.hosts import Hosts
from unisono.simulation.network import SHORT, HostNetwork


class TrafficNetwork(HostNetwork):
    """The same network, which notes each vector of a learner."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__(hosts)
        self._sent: dict[Address, list[tuple[float, float, int]]] = defaultdict(list)
        """When each was sent, and when it arrives, and its bytes."""

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way of a message that is sent now."""
        seconds = super().delay(sender, receiver, nbytes, now)
        if nbytes > SHORT and sender.role == "learner":
            self._sent[sender].append((now, now + seconds, nbytes))
        return seconds

    def most_in_flight(self) -> int:
        """The most bytes that a learner had sent and that had not arrived, at any time."""
        most = 0
        for messages in self._sent.values():
            changes = [(sent, nbytes) for sent, _, nbytes in messages]
            changes += [(arrived, -nbytes) for _, arrived, nbytes in messages]
            now = 0
            for _, change in sorted(changes):
                now += change
                most = max(most, now)
        return most

    def most_in(self, seconds: float, until: float = float("inf")) -> int:
        """The most bytes that a learner sent in any window of so many seconds, up to a time."""
        most = 0
        for messages in self._sent.values():
            now, first = 0, 0
            for sent, _, nbytes in messages:
                if sent > until:
                    break
                now += nbytes
                while messages[first][0] <= sent - seconds:
                    now -= messages[first][2]
                    first += 1
                most = max(most, now)
        return most
