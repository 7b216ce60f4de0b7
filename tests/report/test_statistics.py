"""Student's interval against the printed tables and against its own promise."""

from __future__ import annotations

import random

import pytest

from unisono.report.statistics import Estimate, estimate, student

# Two-sided 90 %, as every printed table has it.
TABLE = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 9: 1.833, 10: 1.812, 30: 1.697}


@pytest.mark.parametrize(("freedom", "t"), TABLE.items())
def test_the_table(freedom: int, t: float) -> None:
    assert student(freedom) == pytest.approx(t, abs=6e-4)


def test_other_levels_and_the_normal_limit() -> None:
    assert student(4, 0.95) == pytest.approx(2.776, abs=6e-4)
    assert student(7, 0.99) == pytest.approx(3.499, abs=6e-4)
    assert student(2000) == pytest.approx(1.645, abs=2e-3)


def test_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0])
    reach = 2.920 / 3**0.5
    assert (found.mean, found.low, found.high) == pytest.approx(
        (2.0, 2.0 - reach, 2.0 + reach), abs=1e-3
    )
    assert estimate([4.0]) == Estimate(4.0, None, None)
    assert estimate([4.0, 4.0]) == Estimate(4.0, 4.0, 4.0)


def test_nine_of_ten_intervals_hold_the_mean() -> None:
    chance = random.Random(0)
    held = 0
    for _ in range(2000):
        found = estimate([chance.gauss(7.0, 3.0) for _ in range(4)])
        assert found.low is not None and found.high is not None
        held += found.low < 7.0 < found.high
    assert 0.88 < held / 2000 < 0.92  # standard deviation 0.0067
