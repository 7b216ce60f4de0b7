"""From a configuration to its schedule: the strategy's rule and the keys of [rate]."""

from __future__ import annotations

import pytest

from unisono.config import load
from unisono.errors import UserError
from unisono.optim import Constant, Exponential, Power, WarmUp
from unisono.training.rates import make_schedule, rate_factor


@pytest.mark.parametrize(
    ("sets", "factor"),
    [
        (["learners=1"], 1.0),
        (["learners=2"], 2.0),
        (["learners=4"], 2.0),
        (["learners=4", "rate.most=0"], 4.0),
        (["learners=4", "rate.start=0.01"], 4.0),
        (["learners=4", "rate.start=0.3"], 1.0),
        (
            [
                "learners=1",
                "strategy.name=server",
                "strategy.push=gradient",
                "strategy.overlap=false",
            ],
            10.0,
        ),
        (["learners=4", "strategy.outer=nesterov"], 1.0),
        (["learners=4", "rate.scaled=false"], 1.0),
        (["learners=4", "optimizer=adamw"], 1.0),
        (["learners=1", "strategy.name=averaging"], 1.0),
    ],
)
def test_the_factor_is_the_strategy_s_rule(sets: list[str], factor: float) -> None:
    assert rate_factor(load(None, sets, {})) == pytest.approx(factor)


def test_the_default_is_as_ever() -> None:
    config = load(None, ["learners=4", "rate.most=0"], {})
    schedule = make_schedule(config)
    assert schedule == Exponential(start=0.2, end=0.1)
    for progress in (0.0, 0.123, 0.5, 1.0):
        assert schedule.rate(progress) == 0.05 * 4.0 * 0.1**progress


def test_the_other_schedules() -> None:
    sets = ["learners=4", "rate.start=0.1", "rate.most=0", "epochs=8"]
    constant = load(None, [*sets, "rate.schedule=constant"], {})
    assert make_schedule(constant) == Constant(start=0.4)
    power = load(None, [*sets, "rate.schedule=power", "rate.end=0.2"], {})
    assert make_schedule(power) == Power(start=0.4, end=0.2)
    warmup = load(None, [*sets, "rate.schedule=warmup", "rate.warmup=2.5"], {})
    assert make_schedule(warmup) == WarmUp(start=0.1, factor=4.0, warmup=2.5, epochs=8)


def test_a_warm_up_that_never_ends_is_refused() -> None:
    config = load(None, ["rate.schedule=warmup", "rate.warmup=4"], {})
    with pytest.raises(UserError, match=r"rate\.warmup is 4 epochs, and the run has 3"):
        make_schedule(config)


def test_an_unknown_schedule_is_one_line() -> None:
    with pytest.raises(UserError, match=r"rate\.schedule from --set must be 'constant'"):
        load(None, ["rate.schedule=cosine"], {})
