"""Whole runs against a plain numpy computation that knows nothing of fabrics, pools and vectors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from support.soak import SOAK
from unisono.coordinator.client import Abandoned
from unisono.coordinator.messages import RoundCompleted
from unisono.errors import Cause
from unisono.fabric import Cancelled, Precision
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.pool.ranges import Notes
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
from unisono.testing import invariants
from unisono.testing.faults import Fault, Join
from unisono.testing.losses import INCARNATIONS, Marks, Targets
from unisono.testing.properties import Scenario, draw_scenario
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import examples

Numbers = NDArray[np.float64]
RATE = 0.4
LOSS = Targets(distance=100.0)
"""Far apart, and quick to go there: no round finds the learners near each other."""


def rounds_of(total: int, members: int, share: int) -> list[list[list[int]]]:
    """Who trains what: whole rounds in the pool's order, the last one as even as it can be."""
    found = []
    for start in range(0, total, members * share):
        size = min(members * share, total - start)
        if size == members * share:
            sizes = [share] * members
        else:
            sizes = [size // members + (place < size % members) for place in range(members)]
        ends = start + np.cumsum([0, *sizes])
        found.append([list(range(a, b)) for a, b in pairwise(ends)])
    return found


def target(position: int) -> Numbers:
    return LOSS.load(position).numpy()


def weighted(values: list[Numbers], weights: list[int]) -> Numbers:
    return np.average(values, axis=0, weights=weights if sum(weights) else None)


def replay_averaging(
    total: int, members: int, share: int, outer: Callable[[Numbers, Numbers], Numbers]
) -> Numbers:
    start = np.zeros(LOSS.dimension)
    for parts in rounds_of(total, members, share):
        ends, weights = [], []
        for part in parts:
            x = start.copy()
            for position in part:
                x -= RATE * (x - target(position))
            ends.append(x)
            weights.append(sum(examples(position) for position in part))
        start = outer(start, weighted(ends, weights))
    return start


def quantized(values: Numbers, levels: int) -> Numbers:
    """One block, to the nearest of so many levels on each side."""
    scale = float(np.float32(np.abs(values).max(initial=0.0) / levels))
    return np.clip(np.rint(values / scale), -levels, levels) * scale if scale else 0 * values


def replay_averaging_in_few_bits(total: int, members: int, share: int, levels: int) -> Numbers:
    """Each sends the owners of slices its change and what it has not sent; they send the mean."""
    start, count = np.zeros(LOSS.dimension), LOSS.dimension
    slices = [slice(count * i // members, count * (i + 1) // members) for i in range(members)]
    unsent, mean_unsent = np.zeros((members, count)), np.zeros(count)
    for parts in rounds_of(total, members, share):
        weights = np.array([sum(examples(position) for position in part) for part in parts])
        mean = np.zeros(count)
        for member, part in enumerate(parts):
            x = start.copy()
            for position in part:
                x -= RATE * (x - target(position))
            wanted = x - start + unsent[member]
            sent = [quantized(wanted[own], levels) for own in slices]
            sent[member] = wanted[slices[member]]
            mean += weights[member] / weights.sum() * np.concatenate(sent)
            if part:
                unsent[member] = wanted - np.concatenate(sent)
        wanted = mean + mean_unsent
        mean = np.concatenate([quantized(wanted[own], levels) for own in slices])
        mean_unsent = wanted - mean
        start = start + mean
    return start


def replay_allreduce(total: int, members: int) -> Numbers:
    x = np.zeros(LOSS.dimension)
    for parts in rounds_of(total, members, 1):
        positions = [part[0] for part in parts if part]
        gradients = [x - target(position) for position in positions]
        x = x - RATE * weighted(gradients, [examples(position) for position in positions])
    return x


def final(strategy: AllReduce | Averaging, learners: int, total: int, seed: int) -> Numbers:
    run = ToyCluster(
        strategy=strategy,
        learners=learners,
        total=total,
        loss=LOSS,
        rate=RATE,
        slowness={0: 3.0},
        scheduler=SeededScheduler(seed),
    ).run()
    found = run.survivors[0].final
    assert found is not None
    return found


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [1, 11, 30])
def test_allreduce_makes_the_steps_of_one_large_minibatch(learners: int, total: int) -> None:
    found = final(AllReduce(), learners, total, seed=learners)
    np.testing.assert_allclose(found, replay_allreduce(total, learners), rtol=1e-10)


def plain(start: Numbers, mean: Numbers) -> Numbers:
    return mean


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [1, 11, 30])
@pytest.mark.parametrize("share", [1, 3])
def test_static_averaging_is_the_mean_of_separate_walks(
    learners: int, total: int, share: int
) -> None:
    found = final(
        Averaging(every=4 * share, sharding=Sharding.STATIC), learners, total, seed=learners
    )
    expected = replay_averaging(total, learners, share, plain)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("total", [1, 11, 60])
@pytest.mark.parametrize(("precision", "levels"), [(Precision.INT8, 127), (Precision.INT4, 7)])
def test_static_averaging_in_few_bits(
    learners: int, total: int, precision: Precision, levels: int
) -> None:
    strategy = Averaging(every=8, sharding=Sharding.STATIC, precision=precision)
    found = final(strategy, learners, total, seed=learners)
    expected = replay_averaging_in_few_bits(total, learners, 2, levels)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def momentum_step(kind: str) -> Callable[[Numbers, Numbers], Numbers]:
    """One stateful outer step, written down from its formula."""
    memory = np.zeros(LOSS.dimension)

    def step(start: Numbers, mean: Numbers) -> Numbers:
        nonlocal memory
        gradient = start - mean
        if kind == "block":
            memory = 0.6 * memory - gradient
            return start + memory
        if kind == "slowmo":
            memory = 0.5 * memory + gradient / RATE
            return start - RATE * memory
        memory = 0.9 * memory + gradient
        return start - 0.7 * (gradient + 0.9 * memory)

    return step


@pytest.mark.parametrize(
    ("outer", "kind"),
    [
        (BlockMomentum(momentum=0.6), "block"),
        (SlowMo(momentum=0.5), "slowmo"),
        (Nesterov(momentum=0.9, rate=0.7), "nesterov"),
    ],
)
def test_static_averaging_with_momentum(outer: Outer, kind: str) -> None:
    found = final(Averaging(every=8, sharding=Sharding.STATIC, outer=outer), 3, 40, seed=1)
    expected = replay_averaging(40, 3, 2, momentum_step(kind))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("latency", [0.01, 0.3, 1.3])
@pytest.mark.parametrize("faults", [[], [Join(2.6, 3)], [Join(4.2, 3), Join(5.0, 4)]])
@pytest.mark.parametrize("seed", range(4))
def test_drawn_averaging_weighs_each_minibatch_as_its_round_says(
    latency: float, faults: list[Fault], seed: int
) -> None:
    """With marks for steps, the consensus is known in closed form.

    A step in a round where learner i brought n_i of N examples counts for n_i / N, whenever the
    learner made it and whenever it got the result. The rounds' contents come from the ledgers.
    """
    total, rate = 60, 0.1
    marks = Marks(total, 5, rate)
    run = ToyCluster(
        strategy=Averaging(every=8, sharding=Sharding.DYNAMIC, outer=Plain()),
        learners=3,
        total=total,
        loss=marks,
        rate=rate,
        slowness={1: 5.0},
        network=SimulatedNetwork(latency=latency),
        scheduler=SeededScheduler(seed),
        faults=faults,
    ).run()
    expected = np.zeros((total, 5 * INCARNATIONS))
    in_round: dict[int, int] = {}
    for result in run.results:
        for exchange in result.ledger.exchanges():
            in_round[exchange.round] = in_round.get(exchange.round, 0) + exchange.weight
    for result in run.results:
        for exchange in result.ledger.exchanges():
            for start, stop in exchange.ranges:
                share = exchange.weight / in_round[exchange.round]
                expected[start:stop, INCARNATIONS * result.address.number] += share
    assert (expected.sum(axis=1) > 0).all()
    for result in run.survivors:
        assert result.consensus is not None
        np.testing.assert_allclose(marks.read(result.consensus), expected, atol=1e-9)
    invariants.same_end(run, exactly=False)


def expected_marks(scenario: Scenario) -> Numbers:
    """The same from what the learners reported, with deaths: the dead may have brought their part.

    A sync round that only the dead had seen does not count; its minibatches come in a later one.
    """
    notes: dict[int, Notes] = {}
    for command in scenario.cluster.journal.replay():
        if isinstance(command.operation, RoundCompleted):
            known = notes.setdefault(command.operation.round, command.operation.notes)
            assert known == command.operation.notes, "members disagree on what went in"
    expected = np.zeros((scenario.marks.total, scenario.marks.learners * INCARNATIONS))
    for _, brought in sorted(notes.items()):
        trained = {
            who: [p for a, b in ranges for p in range(a, b)] for who, ranges in brought.items()
        }
        weights = {who: sum(map(examples, positions)) for who, positions in trained.items()}
        for who, positions in trained.items():
            expected[positions] = 0.0
            incarnation = INCARNATIONS * who.number + who.incarnation
            expected[positions, incarnation] = weights[who] / max(1, sum(weights.values()))
    return expected


def check_weights(strategy: Averaging, seed: int) -> None:
    scenario = draw_scenario(lambda: strategy, seed, faults=True)
    try:
        run = scenario.cluster.run()
    except Cancelled as end:
        assert isinstance(end.__cause__, Abandoned)
        assert end.__cause__.failure.cause is Cause.MODEL_LOST
        return
    for result in run.survivors:
        assert result.consensus is not None
        found = scenario.marks.read(result.consensus)
        np.testing.assert_allclose(
            found, expected_marks(scenario), atol=1e-9, err_msg=f"seed {seed}"
        )


DIVISIONS = [Averaging(every=8, sharding=sharding) for sharding in Sharding]


@pytest.mark.parametrize("strategy", DIVISIONS, ids=lambda s: s.sharding.value)
def test_averaging_weighs_each_minibatch_as_its_round_says_under_faults(
    strategy: Averaging,
) -> None:
    for seed in range(120):
        check_weights(strategy, seed)


@pytest.mark.long
@pytest.mark.timeout(120 + 120 * SOAK)
@pytest.mark.parametrize("strategy", DIVISIONS, ids=lambda s: s.sharding.value)
def test_it_does_so_in_many_schedules(strategy: Averaging) -> None:
    for seed in range(10_000, 10_000 + 400 * SOAK):
        check_weights(strategy, seed)
