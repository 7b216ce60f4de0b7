"""Measures a learner's network links."""

from __future__ import annotations

from unisono.coordinator.status import LinkRate
from unisono.fabric import Address, Fabric


class LinkRates:
    """Looks at what was sent since the last look."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._before: dict[Address, tuple[int, float]] = {}

    def slowest(self) -> LinkRate | None:
        """The one with the fewest bytes a second; None: nothing was sent over a network.

        What is still on its way counts with the time that it has taken so far, and again at the
        next look.
        """
        found: list[LinkRate] = []
        for to, traffic in list(self._fabric.traffic.items()):
            since = traffic.carrying_since
            under_way = 0.0 if since is None else self._fabric.now() - since
            nbytes, seconds = self._before.get(to, (0, 0.0))
            new_bytes, new_seconds = traffic.bytes - nbytes, traffic.seconds + under_way - seconds
            if new_seconds <= 0 or new_bytes <= 0:
                continue
            found.append(LinkRate(to.name, new_bytes, new_seconds))
            if since is None:
                self._before[to] = (traffic.bytes, traffic.seconds)
        return min(found, key=lambda link: link.bytes / link.seconds, default=None)
