"""A RangeSet is a set of integers."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.pool.ranges import RangeSet, count, cut, subtract

ends = st.integers(0, 40)
ranges = st.tuples(ends, ends)
actions = st.lists(st.tuples(st.sampled_from(["add", "remove", "take"]), ranges), max_size=30)


def check(found: RangeSet, expected: set[int]) -> None:
    assert {p for start, stop in found for p in range(start, stop)} == expected
    assert len(found) == len(expected)
    assert bool(found) == bool(expected)
    # Sorted, disjoint, and not even touching: one way to write a set.
    borders = [border for pair in found for border in pair]
    assert borders == sorted(set(borders))


@settings(deadline=None)
@given(actions)
def test_a_range_set_does_what_a_set_does(actions: list[tuple[str, tuple[int, int]]]) -> None:
    found, expected = RangeSet(), set[int]()
    for name, (start, stop) in actions:
        if name == "add":
            found.add(start, stop)
            expected |= set(range(start, stop))
        elif name == "remove":
            found.remove(start, stop)
            expected -= set(range(start, stop))
        else:
            taken = [p for a, b in found.take(start) for p in range(a, b)]
            assert taken == sorted(expected)[:start]
            expected -= set(taken)
        check(found, expected)
        assert all((p in found) == (p in expected) for p in range(-1, 42))


@settings(deadline=None)
@given(st.lists(ranges, max_size=8), st.lists(ranges, max_size=8), ranges)
def test_parts_and_differences_are_those_of_sets(
    one: list[tuple[int, int]], other: list[tuple[int, int]], part: tuple[int, int]
) -> None:
    def positions(ranges: Iterable[tuple[int, int]]) -> set[int]:
        return {p for start, stop in ranges for p in range(start, stop)}

    within = RangeSet(one).within(*part)
    assert positions(within) == positions(one) & set(range(*part))
    assert all(start < stop for start, stop in within)
    assert positions(subtract(one, other)) == positions(one) - positions(other)
    assert subtract(one, RangeSet(other)) == subtract(one, other)


@settings(deadline=None)
@given(st.lists(ranges, max_size=8))
def test_equal_sets_are_equal_however_they_were_made(parts: list[tuple[int, int]]) -> None:
    assert RangeSet(parts) == RangeSet(reversed(parts))
    assert RangeSet(parts) == RangeSet(RangeSet(parts))


@settings(deadline=None)
@given(st.lists(ranges.filter(lambda r: r[0] < r[1]), max_size=6), ends, ends)
def test_cut_takes_places_of_the_ranges_laid_end_to_end(
    parts: list[tuple[int, int]], start: int, stop: int
) -> None:
    laid = [p for a, b in parts for p in range(a, b)]
    pieces = cut(parts, start, stop)
    assert [p for a, b in pieces for p in range(a, b)] == laid[start:stop]
    assert count(parts) == len(laid)
