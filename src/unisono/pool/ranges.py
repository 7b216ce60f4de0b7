"""Sets of positions, kept as disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

from unisono.fabric.address import Address

Range = tuple[int, int]
"""Positions ``start`` to ``stop - 1``."""
Ranges = tuple[Range, ...]
Notes = dict[Address, Ranges]
"""Positions by the learner that trained them."""


class RangeSet:
    """A set of integers as sorted, disjoint, non-touching ranges."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._count = 0
        for start, stop in ranges:
            self.add(start, stop)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._starts, position) - 1
        return place >= 0 and position < self._stops[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def add(self, start: int, stop: int) -> None:
        """Adds positions; those that are in it already stay."""
        if start >= stop:
            return
        if not self._stops or start > self._stops[-1]:
            self._starts.append(start)
            self._stops.append(stop)
            self._count += stop - start
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._count += stop - start - self._covered(first, last)
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Takes positions out; those that are not in it are no matter."""
        if start >= stop:
            return
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if first >= last:
            return
        keep = []
        if self._starts[first] < start:
            keep.append((self._starts[first], start))
        if self._stops[last - 1] > stop:
            keep.append((stop, self._stops[last - 1]))
        self._count += count(keep) - self._covered(first, last)
        self._starts[first:last] = [a for a, _ in keep]
        self._stops[first:last] = [b for _, b in keep]

    def within(self, start: int, stop: int) -> list[Range]:
        """Those of its positions that are from ``start`` to ``stop - 1``."""
        if start >= stop:
            return []
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        return [
            (max(start, self._starts[place]), min(stop, self._stops[place]))
            for place in range(first, last)
        ]

    def _covered(self, first: int, last: int) -> int:
        """Positions in the ranges of these numbers."""
        if last - first == 1:
            return self._stops[first] - self._starts[first]
        return sum(self._stops[first:last]) - sum(self._starts[first:last])

    def take(self, count: int) -> list[Range]:
        """Takes the first ``count`` positions out."""
        taken: list[Range] = []
        while count > 0 and self._starts:
            start, stop = self._starts[0], min(self._stops[0], self._starts[0] + count)
            taken.append((start, stop))
            count -= stop - start
            self.remove(start, stop)
        return taken


def count(ranges: Iterable[Range]) -> int:
    """How many positions there are in a list of ranges."""
    return sum(stop - start for start, stop in ranges)


def cut(ranges: Iterable[Range], start: int, stop: int) -> list[Range]:
    """The positions number ``start`` to ``stop - 1`` of the ranges, taken one after the other."""
    pieces: list[Range] = []
    offset = 0
    for a, b in ranges:
        low, high = max(start - offset, 0), min(stop - offset, b - a)
        if low < high:
            pieces.append((a + low, a + high))
        offset += b - a
    return pieces


def merge(*parts: Iterable[Range]) -> Ranges:
    """The positions of all parts, in order, in as few ranges as possible."""
    if len(parts) == 1 and type(parts[0]) is tuple and len(parts[0]) == 1:
        only: Ranges = parts[0]
        return only if only[0][0] < only[0][1] else ()
    merged: list[Range] = []
    for start, stop in sorted([(a, b) for part in parts for a, b in part if a < b]):
        if merged and start <= merged[-1][1]:
            if stop > merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def subtract(ranges: Iterable[Range], *others: RangeSet | Iterable[Range]) -> Ranges:
    """The positions that are in none of the others."""
    left = merge(ranges)
    for other in others:
        if isinstance(other, RangeSet):
            other = [part for start, stop in left for part in other.within(start, stop)]
        if other and left:
            rest = RangeSet(left)
            for start, stop in other:
                rest.remove(start, stop)
            left = tuple(rest)
    return left


def merge_notes(*parts: Mapping[Address, Iterable[Range]]) -> Notes:
    """The positions of all parts, by owner."""
    found: dict[Address, list[Iterable[Range]]] = {}
    for notes in parts:
        for owner, ranges in notes.items():
            found.setdefault(owner, []).append(ranges)
    return {owner: merge(*several) for owner, several in found.items()}
