"""Every order of deliveries in a stretch of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.fabric import Address
from unisono.fabric.simulated.schedulers import Delivery, ExhaustiveScheduler


class Stretch(ExhaustiveScheduler):
    """Every order of the deliveries number ``first`` to ``first + length - 1`` of a run.

    A whole run of two learners has more orders than can be walked, and a bounded walk, depth first,
    would see the end of it only. So the deliveries before and after the stretch come in the order
    in which they can (``shift`` picks which goes first), and the stretches move over the whole run.
    """

    def __init__(self, first: int, length: int, shift: int = 0) -> None:
        super().__init__()
        self._first = first
        self._stop = first + length
        self._shift = shift
        self._place = 0
        self.deliveries = 0
        """In the longest run so far."""

    def choose(self, deliveries: Sequence[Delivery]) -> int | None:
        """Outside of the stretch, the order is fixed."""
        self._place += 1
        self.deliveries = max(self.deliveries, self._place)
        if self._first < self._place <= self._stop:
            return super().choose(deliveries)
        return self._shift % len(deliveries)

    def touch(self, address: Address) -> None:
        """What deliveries outside of the stretch touch is no matter."""
        if self._first < self._place <= self._stop:
            super().touch(address)

    def walk(self, run: Callable[[ExhaustiveScheduler], None], bound: int) -> bool:
        """Runs every order of the stretch, at most ``bound``; says whether all were walked."""

        def from_the_start(scheduler: ExhaustiveScheduler) -> None:
            self._place = 0
            run(scheduler)

        return super().walk(from_the_start, bound)


@dataclass(frozen=True)
class Walked:
    """What a walk over stretches has seen."""

    orders: int
    deliveries: int
    """In the longest run."""
    complete: bool
    """Whether all orders of all stretches were walked."""


def walk_stretches(
    run: Callable[[ExhaustiveScheduler], None],
    length: int,
    *,
    step: int = 1,
    shift: int = 0,
    bound: int = 10_000,
) -> Walked:
    """Walks stretch after stretch over the whole run; they begin ``step`` deliveries apart.

    ``bound`` limits the orders of one stretch.
    """
    first, orders, deliveries, complete = 0, 0, 1, True
    while first < deliveries:
        stretch = Stretch(first, length, shift)
        complete &= stretch.walk(run, bound)
        orders += stretch.orders
        deliveries = max(deliveries, stretch.deliveries)
        first += step
    return Walked(orders, deliveries, complete)
