"""Sends messages to learners without blocking the coordinator."""

from __future__ import annotations

from collections import deque

from unisono.coordinator.directives import ViewChanged
from unisono.coordinator.output import Output
from unisono.fabric.address import Address
from unisono.fabric.api import Fabric, Full, Gone

RETRY_S = 0.02
"""Seconds between two tries, while a receiver has no credit left."""


class Outbox:
    """Sends at once where there is credit; keeps the rest, in order for each learner and port.

    Changes of the view that wait are replaced by one that makes the learner ask for the whole view.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._waiting: dict[tuple[Address, str], deque[Output]] = {}

    @property
    def empty(self) -> bool:
        return not self._waiting

    def send(self, output: Output) -> None:
        waiting = self._waiting.get((output.to, output.port)) if self._waiting else None
        if waiting is None:
            if not self._try(output):
                self._waiting[output.to, output.port] = deque([output])
            return
        body = output.body
        if isinstance(body, ViewChanged) and isinstance(waiting[-1].body, ViewChanged):
            waiting.pop()
            output = output._replace(body=ViewChanged(body.version, body.version))
        waiting.append(output)

    def flush(self) -> None:
        for key, waiting in list(self._waiting.items()):
            while waiting and self._try(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._waiting[key]

    def forget(self, learner: Address) -> None:
        """Drops what is kept for a learner that is dead."""
        for key in [key for key in self._waiting if key[0] == learner]:
            del self._waiting[key]

    def _try(self, output: Output) -> bool:
        try:
            self._fabric.send(output.to, output.port, output.body, wait=False)
        except Full:
            return False
        except Gone:
            return True
        return True
