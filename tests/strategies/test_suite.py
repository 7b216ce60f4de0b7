"""Every strategy passes the shipped suite, with hundreds of random schedules with faults in all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from support.soak import SOAK
from unisono.fabric import Precision
from unisono.strategies import (
    ADPSGD,
    AllReduce,
    AveragedServer,
    Averaging,
    BlockMomentum,
    Candidate,
    DelayByOne,
    Elastic,
    GossipFixed,
    GossipRandom,
    Nesterov,
    PushKind,
    Server,
    Sharding,
    SlowMo,
    Solo,
)
from unisono.strategies.base import Strategy
from unisono.testing import Promises, check_strategy
from unisono.testing.properties import check_commits, check_schedules

Make = Callable[[], Strategy]
GRADIENT = PushKind.GRADIENT
INT8, INT4 = Precision.INT8, Precision.INT4
PLAIN = Promises()
MOMENTUM = Promises(plain=False, keeps_mean=False, follows=False)
LOOKING_AHEAD = Promises(plain=False, keeps_mean=False, follows=False, ends_equal=False)
PAIRS = Promises(pairs=True, loses_after=2)
ONE_SHARD = Promises(keeps_mean=False, mixes=False, loses_after=2)
OVERLAPPING = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=2)
AVERAGED = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=0)
ELASTIC = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=1)
SHARDED = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=1)

ROUNDED = Promises(keeps_mean=False, follows=False)
LEAVING_OUT = Promises(keeps_mean=False, loses_after=0)


@dataclass(frozen=True)
class ByTurns:
    """A rule that leaves one of those who trained out, another one each time."""

    def objective(self) -> float | None:
        return None

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        trained = [place for place, candidate in enumerate(candidates) if candidate.examples > 0]
        out = trained[sync_round % len(trained)] if len(trained) > 1 else None
        return [
            0.0 if place == out else float(candidate.examples)
            for place, candidate in enumerate(candidates)
        ]


STRATEGIES: dict[str, tuple[Make, Promises, int]] = {
    "allreduce": (AllReduce, PLAIN, 20),
    "static": (lambda: Averaging(every=8, sharding=Sharding.STATIC), PLAIN, 20),
    "dynamic": (lambda: Averaging(every=8, sharding=Sharding.DYNAMIC), PLAIN, 20),
    "short-rounds": (lambda: Averaging(every=4, sharding=Sharding.DYNAMIC), PLAIN, 12),
    "block-momentum": (
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum()),
        MOMENTUM,
        10,
    ),
    "lookahead": (
        lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=BlockMomentum(nesterov=True)),
        LOOKING_AHEAD,
        10,
    ),
    "slowmo": (lambda: Averaging(every=8, sharding=Sharding.STATIC, outer=SlowMo()), MOMENTUM, 10),
    "nesterov-drawn": (
        lambda: Averaging(every=8, sharding=Sharding.DYNAMIC, outer=Nesterov()),
        MOMENTUM,
        10,
    ),
    "leaving-out": (
        lambda: Averaging(every=8, sharding=Sharding.STATIC, selection=ByTurns()),
        LEAVING_OUT,
        12,
    ),
    "leaving-out-drawn": (
        lambda: Averaging(every=8, sharding=Sharding.DYNAMIC, selection=ByTurns()),
        LEAVING_OUT,
        12,
    ),
    "delay-by-one": (DelayByOne, PLAIN, 12),
    "gossip-fixed": (lambda: GossipFixed(every=8), PAIRS, 20),
    "gossip-random": (lambda: GossipRandom(every=4), PAIRS, 20),
    "adpsgd": (lambda: ADPSGD(every=4), PAIRS, 20),
    "adpsgd-rarer": (lambda: ADPSGD(every=8), PAIRS, 12),
    "server": (lambda: Server(push_every=2, shards=1), OVERLAPPING, 20),
    "server-waiting": (lambda: Server(push_every=2, overlap=False, shards=1), OVERLAPPING, 12),
    "server-sharded": (lambda: Server(push_every=1, shards=3), SHARDED, 15),
    "server-bound": (lambda: Server(push_every=1, shards=2, bound=11), SHARDED, 12),
    "server-warm": (lambda: Server(push_every=1, shards=2, warm_start=0.3), SHARDED, 12),
    "server-gradient": (lambda: Server(push=GRADIENT, push_every=2, shards=1), OVERLAPPING, 20),
    "server-gradient-waiting": (
        lambda: Server(push=GRADIENT, overlap=False, shards=1),
        ONE_SHARD,
        20,
    ),
    "server-gradient-sharded": (lambda: Server(push=GRADIENT, shards=3), SHARDED, 15),
    "server-gradient-bound": (lambda: Server(push=GRADIENT, shards=2, bound=11), SHARDED, 12),
    "static-int8": (
        lambda: Averaging(every=8, sharding=Sharding.STATIC, precision=INT8),
        ROUNDED,
        12,
    ),
    "dynamic-int4": (lambda: Averaging(every=8, precision=INT4), ROUNDED, 12),
    "fragments": (lambda: Averaging(every=8, fragments=3), PLAIN, 20),
    "fragments-short-rounds": (lambda: Averaging(every=4, fragments=8), PLAIN, 12),
    "fragments-nesterov": (
        lambda: Averaging(every=8, fragments=3, outer=Nesterov()),
        MOMENTUM,
        10,
    ),
    "fragments-leaving-out": (
        lambda: Averaging(every=8, fragments=3, selection=ByTurns()),
        LEAVING_OUT,
        10,
    ),
    "fragments-int4": (lambda: Averaging(every=8, fragments=4, precision=INT4), ROUNDED, 12),
    "allreduce-int8": (lambda: AllReduce(precision=INT8), ROUNDED, 7),
    "delay-by-one-int8": (lambda: DelayByOne(precision=INT8), ROUNDED, 7),
    "gossip-fixed-int8": (lambda: GossipFixed(every=8, precision=INT8), PAIRS, 12),
    "gossip-random-int4": (lambda: GossipRandom(every=4, precision=INT4), PAIRS, 12),
    "adpsgd-int8": (lambda: ADPSGD(every=4, precision=INT8), PAIRS, 12),
    "server-int8": (lambda: Server(push_every=2, shards=1, precision=INT8), OVERLAPPING, 12),
    "server-sharded-int4": (
        lambda: Server(push_every=1, shards=3, precision=INT4, overlap=False),
        SHARDED,
        12,
    ),
    "server-gradient-int8": (
        lambda: Server(push=GRADIENT, overlap=False, shards=1, precision=INT8),
        ONE_SHARD,
        12,
    ),
    "server-bound-int8": (
        lambda: Server(push_every=1, shards=2, bound=11, precision=INT8),
        SHARDED,
        7,
    ),
    "averaged-server": (lambda: AveragedServer(push_every=1, shards=2), AVERAGED, 12),
    "elastic": (lambda: Elastic(push_every=2, shards=1), ELASTIC, 20),
    "elastic-waiting": (lambda: Elastic(push_every=2, overlap=False, shards=1), ELASTIC, 12),
    "elastic-sharded": (lambda: Elastic(push_every=1, shards=3), ELASTIC, 15),
}
MANY = 100 * SOAK
"""Schedules of a strategy in its long test."""


VARIANTS = {
    "short-rounds",
    "fragments-short-rounds",
    "adpsgd-rarer",
    "server-waiting",
    "server-warm",
    "server-bound",
    "server-gradient-bound",
    "dynamic-int4",
    "fragments-nesterov",
    "fragments-leaving-out",
    "fragments-int4",
    "allreduce-int8",
    "delay-by-one-int8",
    "gossip-fixed-int8",
    "adpsgd-int8",
    "server-sharded-int4",
    "server-gradient-int8",
    "server-bound-int8",
    "elastic-waiting",
}
"""Each differs in an option or two from one of which the quick tests run the suite."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in VARIANTS else ()) for name in STRATEGIES],
)
def test_it_passes_the_suite(name: str) -> None:
    make, promises, schedulers = STRATEGIES[name]
    check_strategy(make, schedulers=schedulers, promises=promises)


@pytest.mark.long
@pytest.mark.timeout(120 + 120 * SOAK)
@pytest.mark.parametrize("name", STRATEGIES)
def test_it_passes_many_schedules(name: str) -> None:
    make, promises, _ = STRATEGIES[name]
    check_schedules(make, range(500, 500 + MANY), promises=promises)


def test_solo_commits_everything_once() -> None:
    check_commits(Solo, 1)


def test_momentum_does_not_keep_the_mean() -> None:
    """What the promises above leave out does not hold: they are no excuse."""
    make, _, _ = STRATEGIES["block-momentum"]
    with pytest.raises(AssertionError, match="moved the mean"):
        check_strategy(make, schedulers=0, promises=Promises(plain=False, follows=False))


def test_looking_ahead_does_not_end_at_the_consensus() -> None:
    make, _, _ = STRATEGIES["lookahead"]
    with pytest.raises(AssertionError, match="final parameters and consensus"):
        check_strategy(make, schedulers=0, promises=MOMENTUM)


def test_work_of_the_dead_is_noted_until_the_coordinator_knows() -> None:
    """The holder of a shard is cut off between telling of a dead learner's push and being heard."""
    make, promises, _ = STRATEGIES["server-gradient-waiting"]
    check_schedules(make, [1380], promises=promises)


def test_who_comes_when_the_run_is_over_is_told_so_though_a_round_is_open() -> None:
    """The last minibatches are skipped after the round that was to commit them has been opened."""
    make, promises, _ = STRATEGIES["leaving-out-drawn"]
    check_schedules(make, [1042], promises=promises)


def test_a_dropped_push_is_trained_again() -> None:
    make, promises, _ = STRATEGIES["server-gradient-bound"]
    check_schedules(make, [657], promises=promises)
