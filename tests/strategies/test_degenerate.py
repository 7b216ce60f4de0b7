"""Settings that turn one strategy into another."""

from __future__ import annotations

import pytest

from unisono.strategies import (
    AllReduce,
    Averaging,
    BlockMomentum,
    Nesterov,
    Plain,
    Sharding,
    SlowMo,
)
from unisono.strategies.outer_steps import Outer
from unisono.testing.properties import check_same


@pytest.mark.parametrize(
    "outer",
    [
        BlockMomentum(momentum=0.0),
        BlockMomentum(momentum=0.0, nesterov=True),
        SlowMo(momentum=0.0),
        Nesterov(momentum=0.0, rate=1.0),
    ],
    ids=repr,
)
def test_without_momentum_averaging_is_plain(outer: Outer) -> None:
    check_same(
        lambda: Averaging(every=8, sharding=Sharding.STATIC),
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=outer),
    )


def test_with_momentum_it_is_not() -> None:
    with pytest.raises(AssertionError, match="differ by"):
        check_same(
            lambda: Averaging(every=8, sharding=Sharding.STATIC),
            lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum(momentum=0.1)),
        )


@pytest.mark.parametrize("learners", [1, 2, 3, 4])
def test_averaging_after_each_plain_step_is_allreduce(learners: int) -> None:
    """From one point, the mean of the steps is the step of the mean."""
    check_same(AllReduce, lambda: Averaging(every=4, sharding=Sharding.STATIC), learners=learners)


def test_block_momentum_of_two_learners_has_momentum_one_half() -> None:
    half = Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum(momentum=0.5))
    default = Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum())
    check_same(lambda: default, lambda: half, learners=2, exactly=True)


def test_block_momentum_of_one_learner_is_plain() -> None:
    check_same(
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum()),
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=Plain()),
        learners=1,
    )


def test_slowmo_is_block_momentum_where_the_rate_is_constant() -> None:
    check_same(
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=SlowMo(momentum=0.4)),
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum(momentum=0.4)),
    )
