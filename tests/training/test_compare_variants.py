"""What a user asks `compare` for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unisono.config import load
from unisono.errors import UserError
from unisono.training.compare_variants import (
    Plan,
    Variant,
    plan_comparison,
    read_rates,
    read_variants,
)
from unisono.training.rates import rate_factor


def make_plan(**changes: Any) -> Plan:
    asked: dict[str, Any] = {
        "prep": Path("prep"),
        "strategies": "averaging,averaging:sharding=dynamic:every=4096",
        "learners": 4,
        "rates": "2,0.5",
        "seeds": 2,
        "epochs": None,
        "sets": [],
    }
    return plan_comparison(**(asked | changes))


def test_every_variant_gets_every_rate_and_seed_and_solo_is_always_there() -> None:
    jobs = list(make_plan(sets=["seed=5", "rate.start=0.1"]).jobs(Path("out")))
    assert len(jobs) == len({job.path for job in jobs}) == 3 * 2 * 2
    names = ["solo", "averaging", "averaging:sharding=dynamic:every=4096"]
    for name in names:
        mine = [job for job in jobs if job.variant.name == name]
        grid = [(job.config.seed, job.config.start_rate) for job in mine]
        assert grid == [(5, 0.05), (5, 0.2), (6, 0.05), (6, 0.2)]
        assert {job.config.learners for job in mine} == {"1" if name == "solo" else "4"}
    dynamic = next(job for job in jobs if job.variant.name == names[2])
    assert dynamic.config.strategy_options == {"sharding": "dynamic", "every": 4096}
    assert dynamic.path == Path("out/runs/averaging+sharding=dynamic+every=4096/0.5/5")
    assert all(job.config.validation.halves for job in jobs)
    assert [job.seed for job in jobs] == [5] * 6 + [6] * 6


def test_only_strategies_with_shards_have_servers() -> None:
    plan = make_plan(strategies="averaging,server", sets=["servers=2"])
    servers = {job.variant.name: job.config.servers for job in plan.jobs(Path("out"))}
    assert servers == {"solo": 0, "averaging": 0, "server": 2}


def test_the_rest_of_the_configuration_is_the_same_for_all() -> None:
    plan = make_plan(sets=["minibatch=64", "rate.schedule=warmup"], epochs=7)
    expected = load(None, ["minibatch=64", "rate.schedule=warmup", "epochs=7"], {"prep": "prep"})
    told = {"strategy", "learners", "seed", "rate", "validation", "optimizer"}
    for job in plan.jobs(Path("out")):
        assert job.config.model_dump(exclude=told) == expected.model_dump(exclude=told)
        assert job.config.rate.retries == 0  # a rate at which a run diverges is a result
        rate = job.config.rate.model_copy(update={"start": 0.0, "retries": 3})
        assert rate == expected.rate


def test_a_multiple_multiplies_what_the_rule_makes_of_the_rate() -> None:
    """Half the rate of a solo run is half the rate of four learners."""
    jobs = make_plan(rates="0.5,1,2", seeds=1).jobs(Path("out"))
    rates = {
        (job.variant.name, job.rate): job.config.start_rate * rate_factor(job.config)
        for job in jobs
    }
    for name in ("solo", "averaging"):
        rule = rates[name, 1]
        assert rates[name, 0.5] == pytest.approx(0.5 * rule)
        assert rates[name, 2] == pytest.approx(2 * rule)
    assert rates["averaging", 1] == pytest.approx(0.1)


def test_solo_may_be_said() -> None:
    assert read_variants("averaging, solo") == [Variant("solo"), Variant("averaging")]
    assert read_variants("solo") == [Variant("solo")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names nothing"),
        ("a,,b", "names nothing"),
        ("a,b,a", "names a twice"),
        ("a:drawn", "'drawn' of 'a:drawn' is not an option"),
        ("a:x=../y", "is not an option"),
    ],
)
def test_strategies_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_variants(text)


def test_rates_are_sorted_numbers_above_zero() -> None:
    assert read_rates("2, 0.5,1e-3") == [0.001, 0.5, 2.0]
    for text in ("", "1,", "x", "0", "-1", "inf", "nan", "1,1.0"):
        with pytest.raises(UserError, match="--rates"):
            read_rates(text)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("strategy.name=solo", "--strategies"),
        ("strategy.every=4", "averaging:every=VALUE"),
        ("validation.enabled=false", "nothing can be compared"),
        ("validation.on=none", "nothing can be compared"),
        ("epoch=3", "unknown key"),
    ],
)
def test_what_is_not_for_all_is_refused(said: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_plan(sets=[said])
