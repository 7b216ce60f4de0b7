"""Time to target, against crossings and ratios worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from support.compared import make_compared
from unisono.report.time_to_target import (
    Curve,
    ratio_estimate,
    read_curve,
    time_to_target,
)


def curve(*points: tuple[float, float], seed: int = 0) -> Curve:
    return Curve(seed, 0.0, list(points))


def test_a_crossing_lies_on_the_line_between_two_validations() -> None:
    run = curve((1.0, -4.0), (3.0, -2.0), (5.0, -2.5), (7.0, -1.0))
    assert run.reaches(-3.0) == pytest.approx(2.0)
    assert run.reaches(-2.0) == pytest.approx(3.0)
    assert run.reaches(-1.75) == pytest.approx(6.0)
    assert run.reaches(-0.9) is None
    assert run.reaches(-5.0) == 1.0  # Before the first validation nothing is known.
    assert (run.final, run.best) == (-1.0, -1.0)


def test_the_first_crossing_counts_though_the_curve_falls_again() -> None:
    assert curve((1.0, -3.0), (2.0, -1.0), (3.0, -3.0)).reaches(-2.0) == pytest.approx(1.5)


def test_speed_up_is_paired_by_seed_over_the_same_target() -> None:
    solo = [curve((0.0, -3.0), (10.0, -2.0), seed=0), curve((0.0, -3.0), (20.0, -2.0), seed=1)]
    fast = [curve((0.0, -3.0), (5.0, -2.0), seed=0), curve((0.0, -3.0), (5.0, -2.0), seed=1)]
    found = time_to_target(fast, solo, 0.02)
    assert found.target == pytest.approx(-2.02)
    assert found.speed_up is not None and found.time is not None
    assert found.speed_up.mean == pytest.approx(math.sqrt(2.0 * 4.0))  # the geometric mean
    assert found.time.mean == pytest.approx(5.0 * 0.98)
    own = time_to_target(solo, solo, 0.02)
    assert own.speed_up is not None
    assert (own.speed_up.mean, own.speed_up.low) == (pytest.approx(1.0), pytest.approx(1.0))


def test_who_never_gets_there_says_how_far_it_got() -> None:
    solo = [curve((0.0, -3.0), (10.0, -2.0))]
    found = time_to_target([curve((0.0, -3.0), (9.0, -2.5), (10.0, -2.6))], solo, 0.1)
    assert (found.time, found.speed_up, found.reached, found.best) == (None, None, 0, -2.5)


def test_the_interval_of_ratios_is_that_of_their_logarithms() -> None:
    found = ratio_estimate([2.0, 8.0])
    reach = 6.314 * math.log(2.0)  # t for 1 degree of freedom; s / sqrt(2) is log 2
    assert found.mean == pytest.approx(4.0)
    assert found.low == pytest.approx(4.0 * math.exp(-reach), rel=1e-3)
    assert found.high == pytest.approx(4.0 * math.exp(reach), rel=1e-3)
    assert ratio_estimate([3.0]).low is None


def test_the_clock_starts_when_all_have_joined_and_stands_where_the_model_was_taken(
    tmp_path: Path,
) -> None:
    path = make_compared(tmp_path / "run", [(-3.0, -2.9), (-2.0, -2.5)], start_up=4.0, age=0.25)
    found = read_curve(path, 7, "report_logprob")
    assert found.start_up_s == 4.0
    assert found.points == [(1.25, -2.9), (2.25, -2.5)]
    assert found.stalled_s == pytest.approx(0.02)
