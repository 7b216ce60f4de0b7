"""Who runs next in a simulation, where the clock leaves it open.

``TimedScheduler`` follows the clock. ``SeededScheduler`` draws: latencies jitter, ties are broken
at random, and an activity may be set aside at any fabric call. ``ExhaustiveScheduler`` walks
through every order in which messages can be delivered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from unisono.fabric.address import Address

Delivery = tuple[Address, Address, str, int]
"""Sender, receiver, port and the message's number on that channel: one delivery."""


class Scheduler(Protocol):
    """The choices of one simulated run."""

    def tie(self) -> float:
        """The rank of an event among those of the same time."""
        ...

    def jitter(self) -> float:
        """Extra latency of a message, seconds."""
        ...

    def sets_aside(self) -> bool:
        """Whether the running activity is set aside at this fabric call."""
        ...

    def choose(self, deliveries: Sequence[Delivery]) -> int | None:
        """Which delivery comes next; None: the one that the clock says."""
        ...


class TimedScheduler:
    """The clock decides; ties are first come, first served."""

    def tie(self) -> float:
        """All the same: the kernel's counter decides."""
        return 0.0

    def jitter(self) -> float:
        """None."""
        return 0.0

    def sets_aside(self) -> bool:
        """Never."""
        return False

    def choose(self, deliveries: Sequence[Delivery]) -> int | None:
        """As the clock says."""
        return None


class SeededScheduler:
    """A random schedule that a seed replays."""

    def __init__(self, seed: int, jitter: float = 0.01, switching: float = 0.2) -> None:
        self._random = random.Random(seed)
        self._jitter = jitter
        self._switching = switching

    def tie(self) -> float:
        """A random rank."""
        return self._random.random()

    def jitter(self) -> float:
        """Mostly short, sometimes long."""
        draw = self._random.random()
        return self._jitter * draw**4

    def sets_aside(self) -> bool:
        """Now and then."""
        return self._random.random() < self._switching

    def choose(self, deliveries: Sequence[Delivery]) -> int | None:
        """As the (jittered) clock says."""
        return None


class Redundant(Exception):  # noqa: N818
    """This order differs from one already walked only in deliveries that do not touch."""


class _Frame:
    """One choice on the path: what could be delivered, what was tried, what need not be.

    ``asleep`` and ``tried`` say of each delivery which nodes it touched, when it was made here.
    """

    def __init__(self, enabled: list[Delivery], asleep: dict[Delivery, set[Address]]) -> None:
        self.enabled = enabled
        self.asleep = asleep
        self.tried: dict[Delivery, set[Address]] = {}
        self.last = enabled[0]

    def take(self, delivery: Delivery) -> None:
        """Makes that delivery the one that is walked now."""
        self.last = delivery
        self.tried[delivery] = {delivery[1]}

    def inherit(self) -> dict[Delivery, set[Address]]:
        """What is asleep after the last delivery: what was walked before and does not touch it."""
        touched = self.tried[self.last]
        walked = {**self.asleep, **self.tried}
        return {d: nodes for d, nodes in walked.items() if not nodes & touched}

    def next(self) -> Delivery | None:
        """The next delivery worth trying."""
        for delivery in self.enabled:
            if delivery not in self.asleep and delivery not in self.tried:
                return delivery
        return None


class ExhaustiveScheduler:
    """Every order of deliveries, depth first, without repeating equivalent ones.

    A delivery touches the nodes that run because of it: the receiver, and a sender that waited for
    the credit that it gives back. Deliveries that touch different nodes commute, so two orders that
    differ only in them are the same; sleep sets leave out all but one (Godefroid). Activities run
    until they block, in a fixed order; timers fire only when nothing can be delivered.
    """

    def __init__(self) -> None:
        self._path: list[_Frame] = []
        self._depth = 0
        self.orders = 0
        self.redundant = 0

    def tie(self) -> float:
        """All the same."""
        return 0.0

    def jitter(self) -> float:
        """None: the clock does not order deliveries here."""
        return 0.0

    def sets_aside(self) -> bool:
        """Never: only deliveries are reordered."""
        return False

    def choose(self, deliveries: Sequence[Delivery]) -> int | None:
        """The delivery of the path that is walked now."""
        if self._depth == len(self._path):
            asleep = self._path[-1].inherit() if self._path else {}
            frame = _Frame(list(deliveries), asleep)
            first = frame.next()
            if first is None:
                raise Redundant
            frame.take(first)
            self._path.append(frame)
        choice = self._path[self._depth].last
        self._depth += 1
        return deliveries.index(choice)

    def touch(self, address: Address) -> None:
        """Called by the kernel: a node runs because of the last delivery."""
        if self._depth:
            frame = self._path[self._depth - 1]
            frame.tried[frame.last].add(address)

    def walk(self, run: Callable[[ExhaustiveScheduler], None], bound: int) -> bool:
        """Runs every order, at most ``bound``; says whether all were walked."""
        while self.orders + self.redundant < bound:
            self._depth = 0
            try:
                run(self)
                self.orders += 1
            except Redundant:
                self.redundant += 1
            while self._path and self._path[-1].next() is None:
                self._path.pop()
            if not self._path:
                return True
            frame = self._path[-1]
            choice = frame.next()
            assert choice is not None
            frame.take(choice)
        return False
