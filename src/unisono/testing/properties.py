"""The property suite for authors of strategies.

A test of a strategy is one line::

    from unisono.testing import check_strategy

    def test_it() -> None:
        check_strategy(lambda: MyStrategy(every=8))

``make`` is called anew for each run. The strategy should be set to short rounds (toy minibatches
have at most four examples), or no round would end. A check raises ``AssertionError``; where a seed
led to it, the text names the seed and the call that replays it. A run without faults that cannot
end raises ``DeadlockError``, and says who waits where.

Each check can be run alone, and on another fabric, for example on real threads::

    check_mean(lambda: MyStrategy(every=8), on=ThreadCluster)
    check_on(ThreadCluster, lambda: MyStrategy(every=8))

What it cannot see: anything of torch (optimizer state, buffers, precision, devices: toy learners
make plain gradient steps in double precision), accumulated and skipped steps, checkpoints, speed.
Faults are deaths, pauses, late comers, and cuts between a learner and the coordinator, in
simulation only; connections between two learners do not break by themselves, and messages are not
lost. That each minibatch is in the consensus once is checked exactly, with which weight is not: for
that, recompute your strategy in plain numpy, as ``tests/strategies/test_replay.py`` does for ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unisono.coordinator.client import Abandoned
from unisono.errors import Cause
from unisono.fabric import Cancelled
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.strategies.base import Sharding, Strategy
from unisono.strategies.solo import Solo
from unisono.testing import invariants
from unisono.testing.cluster import Cluster, ToyRun
from unisono.testing.faults import Fault, Join, Kill, draw_faults, learners_hit
from unisono.testing.ledger import Numbers
from unisono.testing.losses import Marks, OneTarget, Targets, Throw
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import BATCH

Make = Callable[[], Strategy]
_LONGEST_ROUND = 8
_RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class Promises:
    """What a strategy promises beyond that each minibatch is in the consensus exactly once.

    The defaults are those of plain averaging. Say what does not hold of yours.
    """

    plain: bool = True
    """One learner ends bit-identical with ``solo``."""
    keeps_mean: bool = True
    """A round moves the learners, but not their weighted mean."""
    follows: bool = True
    """Equal data and no noise: each learner is where one alone would be after as many steps."""
    ends_equal: bool = True
    """All learners end with the consensus."""
    mixes: bool = True
    """Learners have models of their own, which rounds bring together."""
    pairs: bool = False
    """Rounds are exchanges of two, and keep the plain sum of all models."""
    loses_after: int | None = None
    """Deaths in one run from which on some work may be lost with the dead; None: none ever is."""


PLAIN = Promises()


def check_strategy(make: Make, *, schedulers: int = 200, promises: Promises = PLAIN) -> None:
    """The whole suite in simulation: the checks below, then random schedules with faults."""
    check_on(ToyCluster, make, promises=promises)
    if promises.keeps_mean:
        check_mean(make, on=_slow_network, promises=promises)
    if promises.mixes:
        check_contraction(make, promises=promises)
    if _sharding(make) is Sharding.STATIC:
        check_repeats(make, promises=promises)
    check_newcomer(make, promises=promises)
    check_schedules(make, range(schedulers), promises=promises)


def _slow_network(**settings: Any) -> ToyCluster:
    """Messages take longer than minibatches: a round goes on over several steps."""
    return ToyCluster(network=SimulatedNetwork(latency=1.3), **settings)


def check_on(on: Callable[..., Cluster], make: Make, *, promises: Promises = PLAIN) -> None:
    """The part of the suite that any fabric can run."""
    if promises.plain:
        check_alone(make, on=on)
    if promises.keeps_mean:
        check_mean(make, on=on, promises=promises)
    if promises.follows and _sharding(make) is Sharding.STATIC:
        check_equal_data(make, on=on)
    for learners in (1, 2, 4):
        check_commits(make, learners, on=on, promises=promises)


def check_alone(make: Make, *, on: Callable[..., Cluster] = ToyCluster) -> None:
    """One learner, through the strategy's own rounds, ends bit-identical with ``solo``."""
    total = 4 * _share(make) + 1
    loss = Targets(distance=3.0)
    alone = on(strategy=Solo(), learners=1, total=total, loss=loss).run()
    run = on(strategy=make(), learners=1, total=total, loss=loss).run()
    result, expected = run.survivors[0], alone.survivors[0]
    assert result.rounds > 0, "no round happened: one learner must not be a special case"
    assert result.steps == expected.steps, "one learner is not fed as solo is"
    for what in ("final", "consensus"):
        ours, theirs = getattr(result, what), getattr(expected, what)
        assert np.array_equal(ours, theirs), (
            f"one learner's {what} differs from solo's by {np.abs(ours - theirs).max():.3g}"
        )


def check_mean(
    make: Make, *, on: Callable[..., Cluster] = ToyCluster, promises: Promises = PLAIN
) -> None:
    """Rounds keep the weighted mean of learners that are far apart, and lose no step.

    Targets 100 apart and a rate of 0.4 throw the learners about until the very end: nothing has
    converged when the numbers are compared. Minibatches differ in size, so weights are unequal, and
    the last round is short.
    """
    total = 3 * _share(make) * 5 + 2
    for slowness in ({}, {1: 5.0}):
        run = on(
            strategy=make(),
            learners=3,
            total=total,
            loss=Targets(distance=100.0),
            rate=0.4,
            slowness=slowness,
        ).run()
        invariants.nothing_lost(run)
        largest = invariants.sum_kept(run) if promises.pairs else invariants.mean_kept(run)
        assert largest > 1.0, f"no round moved a learner (the largest movement was {largest:.3g})"


def check_equal_data(make: Make, *, on: Callable[..., Cluster] = ToyCluster) -> None:
    """Static sharding, equal data, no noise: a round changes nothing, all are where one would be.

    In a whole round each learner makes as many steps as the others; alone, a learner makes the same
    steps, one after the other.
    """
    learners, rounds = 3, 4
    steps = rounds * _share(make)
    run = on(strategy=make(), learners=learners, total=learners * steps, loss=OneTarget()).run()
    alone = on(strategy=Solo(), learners=1, total=steps, loss=OneTarget()).run()
    expected = alone.survivors[0].final
    for result in run.survivors:
        assert result.final is not None and expected is not None
        difference = np.abs(result.final - expected).max()
        assert difference <= invariants.TOLERANCE, (
            f"{result.address.name} is {difference:.3g} from where one alone is after {steps} steps"
        )


def check_commits(
    make: Make,
    learners: int,
    *,
    on: Callable[..., Cluster] = ToyCluster,
    promises: Promises = PLAIN,
) -> None:
    """Without faults: each minibatch is trained once, and is in everybody's consensus once."""
    total = learners * _share(make) * 3 + 1
    for alike in (False, True):
        marks = Marks(total, learners, _RATE, alike)
        run = on(strategy=make(), learners=learners, total=total, loss=marks, rate=_RATE).run()
        assert run.survivors == run.results, "not all learners came to the end"
        _check_end(run, marks, make, promises, calm=True)


def check_contraction(make: Make, *, promises: Promises = PLAIN) -> None:
    """Thrown apart, learners come together again, also beside one that is much slower.

    Dynamic sharding, its minibatch takes as long as two rounds of the others: what they hand to it
    waits while the next round begins.
    """
    learners, share = 4, _share(make)
    run = ToyCluster(
        strategy=make(),
        learners=learners,
        total=learners * share * 20,
        loss=Throw(distance=1000.0),
        slowness={0: 5.0 * share},
    ).run()
    if promises.pairs:
        invariants.pairs_contract(run)
    else:
        invariants.contracts(run, learners)


def check_repeats(
    make: Make, seeds: Iterable[int] = range(5), *, promises: Promises = PLAIN
) -> None:
    """Static sharding: all members have the same bits, whoever was faster."""
    first: Numbers | None = None
    for seed in seeds:
        run = ToyCluster(
            strategy=make(),
            learners=3,
            total=3 * _share(make) * 4,
            loss=Targets(dimension=50, distance=3.0),
            scheduler=SeededScheduler(seed),
            slowness={seed % 3: 4.0},
        ).run()
        invariants.same_consensus(run, exactly=True)
        if promises.ends_equal:
            invariants.same_end(run, exactly=True)
        final = run.survivors[0].final
        assert final is not None
        first = final if first is None else first
        assert np.array_equal(final, first), (
            f"another schedule (seed {seed}) gives other bits: they differ by "
            f"{np.abs(final - first).max():.3g}"
        )


def check_newcomer(make: Make, *, promises: Promises = PLAIN) -> None:
    """A learner comes late, and the one that handed its state to it dies soon after.

    What the donor had trained, and nobody had agreed on, is lost with it and must not live on in
    the newcomer.
    """
    learners = 2
    total = learners * _share(make) * 8
    marks = Marks(total, learners + 1, _RATE)
    for at in (2.6, 3.6, 4.6, 5.6):
        for incarnation in (2.6, 3.2, 3.8, 4.4):
            run = ToyCluster(
                strategy=make(),
                learners=learners,
                total=total,
                loss=marks,
                rate=_RATE,
                prefetch=0,
                network=SimulatedNetwork(latency=0.3),
                faults=[Join(at, learners), Kill(at + incarnation, 0)],
            ).run()
            _check_end(run, marks, make, promises, calm=False)


def check_schedules(
    make: Make,
    seeds: Iterable[int],
    *,
    faults: bool = True,
    servers: int = 0,
    promises: Promises = PLAIN,
) -> None:
    """Random schedules of 1 to 5 learners, with deaths, pauses, partitions and late comers."""
    for seed in seeds:
        check_schedule(make, seed, faults=faults, servers=servers, promises=promises)


def check_schedule(
    make: Make,
    seed: int,
    *,
    faults: bool = True,
    servers: int = 0,
    promises: Promises = PLAIN,
) -> None:
    """One random schedule; a failing one is replayed with this call."""
    scenario = draw_scenario(make, seed, faults=faults, servers=servers)
    try:
        run = scenario.cluster.run()
        _check_end(run, scenario.marks, make, promises, calm=not scenario.faults)
    except Exception as error:
        all_hit = learners_hit(scenario.faults) >= set(range(scenario.cluster.learners))
        if _nobody_left(error) and all_hit:
            return
        call = f"check_schedule(make, {seed}, faults={faults}, servers={servers})"
        raise AssertionError(
            f"seed {seed}: {type(error).__name__}: {error} "
            f"({scenario.cluster.learners} learners, {scenario.cluster.total} minibatches, faults "
            f"{scenario.faults}; replay with {call})"
        ) from error


@dataclass
class Scenario:
    """A run drawn from a seed."""

    cluster: ToyCluster
    marks: Marks
    faults: list[Fault]


def draw_scenario(make: Make, seed: int, *, faults: bool, servers: int = 0) -> Scenario:
    """How many learners, how much work, who is slow, what goes wrong and when."""
    source = random.Random(seed)
    learners = source.randint(1, 5)
    total = max(learners, source.choice([learners, 7, 23, 40, 61]))
    trouble: list[Fault] = []
    if faults:
        trouble = draw_faults(source, learners, 1.5 * total / learners + 2, servers)
    slowness = {source.randrange(learners): 5.0} if source.random() < 0.4 else {}
    # Somebody may come late: one learner more than the run begins with.
    marks = Marks(total, learners + servers + 1, _RATE, alike=seed % 2 == 1)
    cluster = ToyCluster(
        strategy=make(),
        learners=learners,
        servers=servers,
        total=total,
        loss=marks,
        rate=_RATE,
        prefetch=source.choice([0, 2]),
        slowness=slowness,
        scheduler=SeededScheduler(seed),
        network=SimulatedNetwork(latency=source.choice([0.01, 0.01, 0.4, 1.7])),
        faults=trouble,
    )
    return Scenario(cluster, marks, trouble)


def check_same(
    one: Make, other: Make, *, exactly: bool = False, learners: int = 3, rounds: int = 6
) -> None:
    """Two strategies lead to the same model on the same data: one is a special case of the other.

    For strategies with static sharding with rounds of the same length.
    """
    total = learners * _share(one) * rounds + 1
    runs = [
        ToyCluster(strategy=make(), learners=learners, total=total, loss=Targets(distance=10.0))
        for make in (one, other)
    ]
    ours, theirs = (cluster.run().survivors[0].consensus for cluster in runs)
    assert ours is not None and theirs is not None
    difference = np.abs(ours - theirs).max()
    assert difference <= (0.0 if exactly else invariants.TOLERANCE), (
        f"{one()!r} and {other()!r} differ by {difference:.3g}"
    )


def _check_end(run: ToyRun, marks: Marks, make: Make, promises: Promises, *, calm: bool) -> None:
    exactly = _sharding(make) is Sharding.STATIC
    assert run.survivors, "everything is committed, and nobody has the model"
    invariants.all_committed(run)
    invariants.all_trained(run, calm=calm)
    invariants.nothing_lost(run)
    invariants.same_consensus(run, exactly=exactly)
    if promises.ends_equal:
        invariants.same_end(run, exactly=exactly)
    invariants.kept_once(run, marks, loses_after=promises.loses_after)
    if calm and promises.keeps_mean:
        if promises.pairs:
            invariants.sum_kept(run)
        else:
            invariants.mean_kept(run)


def _nobody_left(error: BaseException) -> bool:
    """Whether the run gave up because every learner that had the model is gone."""
    cause: Any = error.__cause__ if isinstance(error, Cancelled) else error
    return isinstance(cause, Abandoned) and cause.failure.cause is Cause.MODEL_LOST


def _sharding(make: Make) -> Sharding:
    return make().round_plan(BATCH).sharding


def _share(make: Make) -> int:
    share = make().round_plan(BATCH).share
    assert share <= _LONGEST_ROUND, (
        f"a round of {share} minibatches is too long for the suite: set the strategy to rounds of "
        f"at most {_LONGEST_ROUND} minibatches of {BATCH} examples"
    )
    return share
