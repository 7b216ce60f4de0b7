"""How often a learner begins an exchange: every so many examples, or as its cost allows."""

from __future__ import annotations

from unisono.coordinator.pace import MOST_SHARE, OVERHEAD
from unisono.fabric import Fabric


class ExchangePace:
    """Examples between two exchanges that a learner begins: a number, or chosen by their cost.

    With c the seconds of its last exchange and r the examples that it trains in a second, an
    exchange every c r / OVERHEAD examples takes at most that share of the computing. Exchanges are
    never more often than every ``least`` minibatches, and no rarer than every ``MOST_SHARE``, or
    than the links carry them: every c r examples.
    """

    def __init__(self, every: int | str, least: int, fabric: Fabric) -> None:
        self._fixed = every if isinstance(every, int) else None
        self._minibatches = least
        self._fabric = fabric
        self._lock = fabric.lock()
        self._since = fabric.now()
        self._examples = self._minibatch = self._every = 0

    @property
    def every(self) -> int:
        """Examples between two exchanges that this learner begins."""
        with self._lock:
            return self._fixed or max(self._every, self._least)

    @property
    def _least(self) -> int:
        return self._minibatches * self._minibatch

    def trained(self, examples: int) -> None:
        with self._lock:
            self._examples += examples
            self._minibatch = max(self._minibatch, examples)

    def exchanged(self, seconds: float) -> None:
        now = self._fabric.now()
        with self._lock:
            span, self._since = now - self._since, now
            during = seconds * self._examples / span if span > 0 else 0.0
            self._examples = 0
            wanted = min(during / OVERHEAD, max(MOST_SHARE * self._minibatch, during))
            self._every = round(min(wanted, 2 * max(self._every, self._least)))
