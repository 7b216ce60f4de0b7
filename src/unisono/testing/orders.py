"""Every order of deliveries in a stretch of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unisono.fabric.schedules import Channel, Exhaustive


class Stretch(Exhaustive):
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

    def choose(self, deliveries: Sequence[Channel]) -> int | None:
        """Outside of the stretch, the order is fixed."""
        self._place += 1
        self.deliveries = max(self.deliveries, self._place)
        if self._first < self._place <= self._stop:
            return super().choose(deliveries)
        return self._shift % len(deliveries)

    def walk(self, run: Callable[[Exhaustive], None], bound: int) -> bool:
        """Runs every order of the stretch, at most ``bound``; says whether all were walked."""

        def from_the_start(schedule: Exhaustive) -> None:
            self._place = 0
            run(schedule)

        return super().walk(from_the_start, bound)


def walk_stretches(
    run: Callable[[Exhaustive], None], length: int, *, shift: int = 0, bound: int = 10_000
) -> tuple[int, int, bool]:
    """Walks stretch after stretch, each overlapping the one before by half.

    Returns how many orders were walked, how many deliveries the longest run had, and whether all
    orders of all stretches were walked; ``bound`` limits the orders of one stretch.
    """
    first, orders, deliveries, complete = 0, 0, 1, True
    while first < deliveries:
        stretch = Stretch(first, length, shift)
        complete &= stretch.walk(run, bound)
        orders += stretch.orders
        deliveries = max(deliveries, stretch.deliveries)
        first += max(1, length // 2)
    return orders, deliveries, complete
