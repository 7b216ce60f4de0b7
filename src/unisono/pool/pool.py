"""The one pool of minibatches: who has which positions, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from unisono.fabric.address import Address
from unisono.pool.ranges import Range, Ranges, RangeSet, count, cut


@dataclass(frozen=True)
class Assignment:
    """A block of rounds assigned to all members at once.

    In round ``j`` the member number ``i`` of ``W`` trains the positions number
    ``(j W + i) share`` to ``(j W + i + 1) share - 1`` of ``ranges``. Only the last round of all
    may be shorter; it is divided as evenly as possible, the first members getting one more. So a
    part depends on seed, position and members alone, not on where assignments begin. Round ``j``
    ends with sync round number ``first + j``.
    """

    number: int
    first: int
    share: int
    members: tuple[Address, ...]
    ranges: Ranges
    newcomers: tuple[Address, ...] = ()
    donor: Address | None = None
    keep: bool = False
    """Whether there is a checkpoint after its first round, whatever the interval."""

    @property
    def rounds(self) -> int:
        return -(-self._count // (self.share * len(self.members)))

    @cached_property
    def _count(self) -> int:
        return count(self.ranges)

    @cached_property
    def _places(self) -> dict[Address, int]:
        return {member: place for place, member in enumerate(self.members)}

    def has(self, member: Address) -> bool:
        return member in self._places

    def part(self, round_: int, member: Address) -> list[Range]:
        """What a member trains in a round."""
        width = self.share * len(self.members)
        start = round_ * width
        size = min(width, self._count - start)
        place = self._places[member]
        if size == width:
            low, high = place * self.share, (place + 1) * self.share
        else:
            base, extra = divmod(size, len(self.members))
            low = place * base + min(place, extra)
            high = low + base + (place < extra)
        return cut(self.ranges, start + low, start + high)


@dataclass
class Counts:
    """Minibatches by outcome; at the end ``leased = committed + skipped + returned``.

    ``redone`` are those among ``committed`` and ``skipped`` that had been in the hands of a learner
    that died; ``dropped`` are those among ``returned`` whose push came too late.
    """

    leased: int = 0
    committed: int = 0
    returned: int = 0
    redone: int = 0
    skipped: int = 0
    dropped: int = 0


@dataclass
class Pool:
    """Positions 0 to ``total - 1``; those in ``done`` were committed before this run began."""

    total: int
    done: Iterable[Iterable[int]] = ()
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.committed = RangeSet(self.done)
        self.newly_committed = RangeSet()
        """What was committed since this run began or was resumed; not what was skipped."""
        self.held: dict[Address, RangeSet] = {}
        self._free = RangeSet([(0, self.total)])
        for start, stop in self.committed:
            self._free.remove(start, stop)
        self._suspect = RangeSet()
        self.stopped = False
        self._withdrawn = 0
        """Positions that ``stop`` took out before anybody had them."""

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def over(self) -> bool:
        """Whether every position is committed or skipped; an empty pool has not begun."""
        return 0 < self.total == len(self.committed) + self._withdrawn

    def stop(self) -> None:
        """Takes out what nobody has; what was handed out is still to be trained, by anybody."""
        self.stopped = self.stopped or self.free > 0
        self._withdrawn += self.free
        self._free = RangeSet()

    def lease(self, who: Address, want: int, learners: int) -> list[Range]:
        """First come, first served; leases shrink with what is left.

        Half of an equal share of the rest, so that at the end nobody holds much more than another.
        """
        fair = max(1, self.free // (2 * learners))
        return self._lease(who, self._free.take(min(want, fair)))

    def assign(
        self,
        number: int,
        first: int,
        members: Sequence[Address],
        share: int,
        rounds: int,
        newcomers: Sequence[Address] = (),
        donor: Address | None = None,
        *,
        keep: bool = False,
    ) -> Assignment:
        """Assigns up to ``rounds`` rounds to all members."""
        ranges = tuple(self._free.take(rounds * share * len(members)))
        assignment = Assignment(
            number, first, share, tuple(members), ranges, tuple(newcomers), donor, keep
        )
        for round_ in range(assignment.rounds):
            for member in members:
                self._lease(member, assignment.part(round_, member))
        return assignment

    def commit(self, who: Address, ranges: Iterable[Range]) -> None:
        """The effect of these positions is in state that survives their learner."""
        for start, stop in self._keep(who, ranges):
            self.counts.committed += stop - start
            self.newly_committed.add(start, stop)

    def skip(self, who: Address, ranges: Iterable[Range]) -> None:
        """These were computed, but the step was not taken."""
        self.counts.skipped += count(self._keep(who, ranges))

    def give_back(self, who: Address, ranges: Iterable[Range], *, suspect: bool) -> None:
        """These are free again; ``suspect``: they may have been trained already."""
        held = self.held.get(who, RangeSet())
        for start, stop in list(ranges):
            for a, b in held.within(start, stop):
                held.remove(a, b)
                self._free.add(a, b)
                self.counts.returned += b - a
                if suspect:
                    self._suspect.add(a, b)

    def give_all_back(self, who: Address) -> None:
        """Everything that a learner held is free again: it died, or left."""
        self.give_back(who, list(self.held.get(who, ())), suspect=True)
        self.held.pop(who, None)

    def _lease(self, who: Address, ranges: list[Range]) -> list[Range]:
        held = self.held.setdefault(who, RangeSet())
        for start, stop in ranges:
            held.add(start, stop)
            self.counts.leased += stop - start
        return ranges

    def _keep(self, who: Address, ranges: Iterable[Range]) -> list[Range]:
        """Takes them out of what a learner holds; those that it did hold."""
        held = self.held.get(who, RangeSet())
        kept: list[Range] = []
        for start, stop in ranges:
            for a, b in held.within(start, stop):
                held.remove(a, b)
                self.committed.add(a, b)
                kept.append((a, b))
                for c, d in self._suspect.within(a, b):
                    self._suspect.remove(c, d)
                    self.counts.redone += d - c
        return kept
