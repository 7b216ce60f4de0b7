"""The learning rate while one learner of a server trains alone."""

from __future__ import annotations

import pytest

from unisono.config import load
from unisono.training.rates import make_schedule
from unisono.training.worker import schedule_of

SETS = ["strategy.name=server", "strategy.warm_start=0.25", "rate.start=0.02"]


@pytest.mark.parametrize("schedule", ["exponential", "constant", "power", "warmup"])
def test_a_warm_start_has_the_rate_of_a_solo_run(schedule: str) -> None:
    sets = [*SETS, f"rate.schedule={schedule}", "rate.warmup=0.5"]
    four = load(None, [*sets, "learners=4"], {})
    solo = make_schedule(load(None, [*sets, "learners=1"], {}))
    found = schedule_of(four)
    for progress in (0.0, 0.1, 0.25):
        assert found.rate(progress) == solo.rate(progress)
    for progress in (0.26, 0.6, 1.0):
        assert found.rate(progress) == make_schedule(four).rate(progress) > solo.rate(progress)
    assert found.describe().startswith("0.02 at the start")


def test_without_a_warm_start_the_schedule_is_that_of_the_configuration() -> None:
    config = load(None, ["strategy.name=server", "learners=4"], {})
    assert schedule_of(config) == make_schedule(config)
