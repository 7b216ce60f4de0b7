"""Schedules against their closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.optim import Constant, Exponential, Power, Schedule, WarmUp

rates = st.floats(1e-6, 10.0)
shares = st.floats(0.0, 1.0)


@given(start=rates, progress=shares)
def test_constant(start: float, progress: float) -> None:
    assert Constant(start=start).rate(progress) == start


@given(start=rates, end=st.floats(1e-6, 1.0), progress=shares)
def test_exponential_is_linear_in_the_logarithm(start: float, end: float, progress: float) -> None:
    rate = Exponential(start=start, end=end).rate
    assert rate(0.0) == start
    assert rate(1.0) == pytest.approx(start * end)
    between = (1 - progress) * math.log(rate(0.0)) + progress * math.log(rate(1.0))
    assert math.log(rate(progress)) == pytest.approx(between, abs=1e-9)


@given(start=rates, end=st.floats(0.01, 1.0), progress=shares)
def test_power_is_the_rule_of_averaged_sgd(start: float, end: float, progress: float) -> None:
    """g_t = g_0 (1 + a g_0 t) ** (-2/3) over 1000 steps, with the a of which the end follows."""
    a = (end**-1.5 - 1) / (start * 1000)
    expected = start * (1 + a * start * 1000 * progress) ** (-2 / 3)
    rate = Power(start=start, end=end).rate
    assert rate(progress) == pytest.approx(expected)
    assert rate(1.0) == pytest.approx(start * end)


def test_warm_up_by_hand() -> None:
    """Batch 256 at 0.1, ten such batches at a time: 1.0 after 10 of 16 epochs."""
    rate = WarmUp(start=0.1, factor=10.0, warmup=10.0, epochs=16).rate
    by_epoch = {0: 0.1, 5: 0.55, 10: 1.0, 11: 0.5**0.5, 12: 0.5, 14: 0.25, 16: 0.125}
    for epoch, expected in by_epoch.items():
        assert rate(epoch / 16) == pytest.approx(expected)


warm_ups = st.builds(
    WarmUp,
    start=rates,
    factor=st.floats(1.0, 64.0),
    warmup=st.floats(0.01, 10.0),
    epochs=st.floats(10.0, 30.0),
)


@given(schedule=warm_ups)
def test_warm_up_begins_at_the_rate_of_one_learner(schedule: WarmUp) -> None:
    assert schedule.rate(0.0) == schedule.start


@given(schedule=warm_ups)
def test_warm_up_is_continuous_at_its_top(schedule: WarmUp) -> None:
    top = schedule.warmup / schedule.epochs
    for beside in (top * (1 - 1e-9), top * (1 + 1e-9)):
        expected = schedule.start * schedule.factor
        assert schedule.rate(beside) == pytest.approx(expected, rel=1e-6)


@given(schedule=warm_ups, a=shares, b=shares)
def test_warm_up_rises_and_then_falls(schedule: WarmUp, a: float, b: float) -> None:
    top = schedule.warmup / schedule.epochs
    low, high = sorted((a * top, b * top))
    slack = 1e-9 * schedule.start * schedule.factor
    assert schedule.rate(low) <= schedule.rate(high) + slack
    low, high = sorted((top + a * (1 - top), top + b * (1 - top)))
    assert schedule.rate(low) >= schedule.rate(high) - slack


@given(schedule=warm_ups, place=shares)
def test_an_epoch_after_the_warm_up_is_one_over_root_two(schedule: WarmUp, place: float) -> None:
    epoch = schedule.warmup + 0.001 + place * 5
    before, after = (schedule.rate(e / schedule.epochs) for e in (epoch, epoch + 1))
    assert after / before == pytest.approx(1 / math.sqrt(2))


@given(start=rates, warmup=st.floats(0.0, 10.0), progress=shares)
def test_one_learner_warms_up_to_nothing_but_its_own_rate(
    start: float, warmup: float, progress: float
) -> None:
    schedule = WarmUp(start=start, factor=1.0, warmup=warmup, epochs=10)
    expected = start * min(1.0, 2 ** ((warmup - 10 * progress) / 2))
    assert schedule.rate(progress) == pytest.approx(expected)


def test_no_warm_up_begins_at_the_top() -> None:
    assert WarmUp(start=0.1, factor=4.0, warmup=0.0, epochs=3).rate(0.0) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Constant(start=0.1), ["0.1"]),
        (Exponential(start=0.1, end=0.5), ["0.1", "0.05"]),
        (WarmUp(start=0.1, factor=4.0, warmup=2.0, epochs=3), ["0.1", "0.4", "epoch 2"]),
    ],
)
def test_each_says_what_it_does(schedule: Schedule, words: list[str]) -> None:
    assert all(word in schedule.describe() for word in words)
