"""From a configuration to its schedule: the strategy's rule and the keys of [rate]."""

from __future__ import annotations

import pytest

from unisono.config import ScheduleChoice, load
from unisono.errors import UserError
from unisono.optim import Constant, Exponential, Power, Scaled, Schedule, WarmUp
from unisono.strategies import Averaging
from unisono.training.rates import make_schedule, rate_factor


@pytest.mark.parametrize(
    ("sets", "factor"),
    [
        (["learners=1"], 1.0),
        (["learners=2"], 2.0),
        (["learners=16"], 16.0),
        (["learners=16", "optimizer=sgd"], 4.0),
        (["learners=4", "rate.start=0.3"], 4.0),
        (
            [
                "learners=1",
                "strategy.name=server",
                "strategy.push=gradient",
                "strategy.overlap=false",
            ],
            10.0,
        ),
        (["learners=4", "strategy.outer=nesterov"], 2.0),
        (["learners=4", "rate.scaled=false"], 1.0),
        (["learners=4", "optimizer=adamw"], 4.0),
        (["learners=1", "strategy.name=averaging"], 1.0),
        (["learners=4", "strategy.name=server"], 4.0),
        (["learners=4", "strategy.name=averaged-server"], 7.0),
        (["learners=4", "strategy.name=server", "optimizer=sgd"], 4.0),
        (["learners=1", "strategy.name=server"], 1.0),
    ],
)
def test_the_factor_is_the_strategy_s_rule(sets: list[str], factor: float) -> None:
    assert rate_factor(load(None, sets, {})) == pytest.approx(factor)


def test_the_rate_rises_to_the_scaled_one_and_falls_as_that_of_one_learner() -> None:
    alone = make_schedule(load(None, ["learners=1", "optimizer=ng-sgd"], {}))
    together = make_schedule(load(None, ["learners=4", "rate.warmup=0.75", "epochs=3"], {}))
    assert isinstance(alone, Exponential)
    assert together == Scaled(inner=alone, factor=4.0, warmup=0.25)
    assert together.rate(0.0) == alone.rate(0.0)
    assert together.rate(0.125) == pytest.approx(2.5 * alone.rate(0.125))
    for progress in (0.25, 0.3, 0.5, 1.0):
        assert together.rate(progress) == 4.0 * alone.rate(progress)


def test_without_a_warm_up_the_scaled_rate_is_there_at_once() -> None:
    together = make_schedule(load(None, ["learners=4", "rate.warmup=0"], {}))
    assert together.rate(0.0) == pytest.approx(4 * 0.025)


def test_the_other_schedules() -> None:
    sets = ["learners=4", "rate.start=0.1", "epochs=8", "rate.warmup=2"]
    constant = load(None, [*sets, "rate.schedule=constant"], {})
    assert make_schedule(constant) == Scaled(inner=Constant(start=0.1), factor=4.0, warmup=0.25)
    power = load(None, [*sets, "rate.schedule=power", "rate.end=0.2"], {})
    inner = Power(start=0.1, end=0.2)
    assert make_schedule(power) == Scaled(inner=inner, factor=4.0, warmup=0.25)
    warmup = load(None, [*sets, "rate.schedule=warmup", "rate.warmup=2.5"], {})
    assert make_schedule(warmup) == WarmUp(start=0.1, factor=4.0, warmup=2.5, epochs=8)


@pytest.mark.parametrize(
    ("sets", "inner"),
    [
        (["strategy.name=averaging"], Exponential(start=0.025, end=0.1)),
        (["strategy.name=server"], Exponential(start=0.025, end=0.1)),
        (["strategy.name=averaged-server"], Constant(start=0.025)),
        (["strategy.name=averaged-server", "rate.start=0.3"], Constant(start=0.3)),
        (
            ["strategy.name=averaged-server", "rate.schedule=exponential"],
            Exponential(start=0.025, end=0.1),
        ),
        (["strategy.name=averaged-server", "rate.end=0.4"], Exponential(start=0.025, end=0.4)),
        (["strategy.name=averaged-server", "rate.schedule=power"], Power(start=0.025, end=0.1)),
        (["strategy.name=server", "rate.schedule=constant"], Constant(start=0.025)),
    ],
)
def test_the_schedule_is_the_strategy_s_unless_the_user_sets_one(
    sets: list[str], inner: Schedule
) -> None:
    made = make_schedule(load(None, ["learners=2", *sets], {}))
    assert isinstance(made, Scaled)
    assert made.inner == inner


def test_a_strategy_from_outside_declares_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(None, ["learners=2", "strategy.name=averaging", "rate.start=0.1"], {})
    monkeypatch.setattr(Averaging, "schedule", ScheduleChoice.POWER)
    made = make_schedule(config)
    assert isinstance(made, Scaled)
    assert made.inner == Power(start=0.1, end=0.1)


def test_a_warm_up_that_never_ends_is_refused() -> None:
    config = load(None, ["rate.schedule=warmup", "rate.warmup=4"], {})
    with pytest.raises(UserError, match=r"rate\.warmup is 4 epochs, and the run has 3"):
        make_schedule(config)


def test_an_unknown_schedule_is_one_line() -> None:
    with pytest.raises(UserError, match=r"rate\.schedule from --set must be 'auto'"):
        load(None, ["rate.schedule=cosine"], {})
