"""Both neighbours of the ring at weights 1/3: the closed form, speeds, pace, and who waits."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.coordinator.pace import MOST_SHARE, OVERHEAD
from unisono.fabric import Addresses, Fabric, learner
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.planner import Minibatch
from unisono.simulation.faults import Kill
from unisono.simulation.loops import run_loops
from unisono.strategies import ADPSGD
from unisono.strategies.engines.exchange_pace import ExchangePace
from unisono.strategies.engines.neighbours import neighbours
from unisono.strategies.mixing import NeighbourMixing
from unisono.testing import invariants
from unisono.testing.cluster import ToyRun
from unisono.testing.coverage import Coverage
from unisono.testing.ledger import Kind, Numbers
from unisono.testing.losses import Throw
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import ToyLearner

STEPS = 12


class Lockstep(ToyCluster):
    """All learners make their first step at the same time, and each takes as long as the others."""

    def toy(self, fabric: Fabric, coverage: Coverage) -> ToyLearner:
        toy = super().toy(fabric, coverage)
        before = toy.before_step
        assert before is not None

        def before_step(toy: ToyLearner, minibatch: Minibatch) -> None:
            before(toy, minibatch)
            if not toy.result.steps:
                fabric.sleep(50.0 - fabric.now())

        toy.before_step = before_step
        return toy


def thrown(cluster: type[ToyCluster], learners: int, **settings: Any) -> ToyRun:
    """Learners that are thrown apart by their first step, and moved by exchanges alone then."""
    return cluster(
        strategy=ADPSGD(every=1),
        learners=learners,
        total=learners * STEPS,
        loss=Throw(distance=100.0),
        rate=1.0,
        timeout=1000.0,
        **settings,
    ).run()


def models_by_step(run: ToyRun) -> Numbers:
    """The models at the ticks and at the end, by learner and time."""
    results = sorted(run.results, key=lambda r: r.address)
    kept = [[e.vector for e in r.ledger.entries if e.kind is Kind.SNAPSHOT] for r in results]
    # Before the first tick the first learner gave its model to those that joined.
    return np.array([models[-STEPS - 1 :] for models in kept])


def squares(models: Numbers) -> float:
    return float(((models - models.mean(axis=0)) ** 2).sum())


@pytest.mark.parametrize("learners", [2, 3, 4, 5, 8])
def test_in_lockstep_models_are_multiplied_by_the_mixing_matrix(learners: int) -> None:
    """X_k = T^k X_0, written down here from the weights."""
    matrix = np.zeros((learners, learners))
    for i in range(learners):
        around = {i, (i + 1) % learners, (i - 1) % learners}
        matrix[i, sorted(around)] = 1 / len(around)
    models = models_by_step(thrown(Lockstep, learners))
    for step in range(STEPS):
        expected = np.linalg.matrix_power(matrix, step) @ models[:, 0]
        np.testing.assert_allclose(models[:, step], expected, atol=1e-10)
    assert squares(models[:, 0]) > 100.0


@pytest.mark.parametrize("learners", [4, 8])
def test_the_distance_shrinks_at_the_rate_of_the_spectral_gap(learners: int) -> None:
    """On a ring of four all modes shrink to 1/3 a step; on eight the slowest is what remains."""
    kept = NeighbourMixing(learners).kept
    models = models_by_step(thrown(Lockstep, learners))
    left = [squares(models[:, step]) for step in range(STEPS)]
    assert all(after <= kept * before * (1 + 1e-6) for before, after in pairwise(left))
    assert left[-1] == pytest.approx(kept * left[-2], rel=0.05)


@pytest.mark.parametrize(
    ("slow", "latency"),
    [
        pytest.param(slow, latency, marks=() if quick == place else pytest.mark.long)
        for quick, slow in enumerate(({}, {1: 5.0}, {0: 3.0, 2: 7.0}))
        for place, latency in enumerate((0.01, 0.4, 1.7))
    ],
)
def test_the_sum_stays_whatever_the_speeds_and_learners_come_together(
    slow: dict[int, float], latency: float
) -> None:
    network = SimulatedNetwork(latency=latency)
    for seed in range(5):
        run = ToyCluster(
            strategy=ADPSGD(every=1),
            learners=5,
            total=200,
            loss=Throw(distance=100.0),
            slowness=slow,
            network=network,
            scheduler=SeededScheduler(seed),
        ).run()
        invariants.all_committed(run)
        invariants.nothing_lost(run)
        assert invariants.sum_kept(run) > 1.0
        invariants.pairs_contract(run)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 33])
def test_the_gap_is_that_of_the_closed_form(n: int) -> None:
    mixing = NeighbourMixing(n)
    values = [abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n)]
    assert mixing.gap == pytest.approx(1 - max(values))
    np.testing.assert_allclose(mixing.matrix.sum(axis=0), 1)
    np.testing.assert_allclose(mixing.matrix, mixing.matrix.T)


def test_few_learners_are_one_exchange_from_their_mean() -> None:
    for n in (2, 3):
        assert NeighbourMixing(n).kept == pytest.approx(0.0, abs=1e-24)
    assert NeighbourMixing(1).explain() == []


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_predicted_distance_is_that_of_a_random_walk(n: int) -> None:
    mixing = NeighbourMixing(n)
    source = np.random.default_rng(0)
    x, total, steps = np.zeros((n, 400)), 0.0, 1200
    for step in range(steps):
        x = mixing.matrix @ x + source.standard_normal(x.shape)
        if step >= steps // 3:
            total += squares(x) / x.size
    assert math.sqrt(total / (steps - steps // 3)) == pytest.approx(mixing.distance, rel=0.02)


def test_neighbours_are_those_of_the_ring_of_members() -> None:
    ring = Addresses(learner(number) for number in (0, 2, 5, 7))
    assert neighbours(ring, learner(2)) == [learner(5), learner(0)]
    assert neighbours(ring, learner(7)) == [learner(0), learner(5)]
    assert neighbours(Addresses(ring[:2]), learner(0)) == [learner(2)]
    assert neighbours(Addresses(ring[:1]), learner(0)) == []


def test_a_learner_may_hear_from_others_before_it_sees_itself_among_the_members() -> None:
    ring = Addresses(learner(number) for number in (0, 2, 7))
    assert neighbours(ring, learner(5)) == [learner(7), learner(2)]
    assert neighbours(Addresses(), learner(5)) == []


DATA = TensorDataset(torch.randn(960, 5), torch.randn(960, 1))


def train(strategy: ADPSGD, learners: int, **settings: Any) -> tuple[Any, dict[int, int]]:
    steps: dict[int, int] = {}

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with unisono.Learner(model, optimizer, strategy) as learner:
            for x, y in learner.draw(DATA, 1, 4):
                learner.step(nn.functional.mse_loss(model(x), y))
                steps[learner.number] = steps.get(learner.number, 0) + 1

    return run_loops(loop, learners=learners, **settings), steps


@pytest.mark.parametrize("learners", [2, 4])
def test_by_default_it_mixes_after_every_minibatch(learners: int) -> None:
    run, steps = train(ADPSGD(), learners, network=SimulatedNetwork(latency=0.02))
    told = {e["learner"]: e for e in run.events if e["event"] == "exchanges"}
    for number, count in steps.items():
        assert told[number]["due"] == count * min(2, learners - 1)
        assert told[number]["completed"] >= 0.95 * told[number]["due"]


def test_beside_a_slow_learner_the_others_mix_as_often_and_wait_for_nobody() -> None:
    even, _ = train(ADPSGD(every=4), 4)
    run, steps = train(ADPSGD(every=4), 4, slowness={1: 10.0})
    assert steps[1] < steps[0] / 5
    # Three of four learners at full speed, and what the slow one had fetched.
    assert run.seconds < even.seconds * 4 / 3 + 30.0
    for event in (e for e in run.events if e["event"] == "exchanges"):
        assert event["completed"] >= 0.9 * event["due"]


def test_it_goes_on_without_a_neighbour_that_dies() -> None:
    run, steps = train(ADPSGD(), 4, faults=[Kill(20.0, 2)])
    assert run.state.pool.over and run.state.pool.counts.committed == 240
    assert set(steps) == {0, 1, 2, 3}
    assert [a.number for a in run.state.lost] == [2]


@pytest.mark.parametrize(
    ("seconds", "every"),
    [(0.1, 0.1 * 100 / OVERHEAD), (0.5, MOST_SHARE * 4), (5.0, 5.0 * 100)],
    ids=["as the overhead allows", "no rarer than helps", "as the links carry them"],
)
def test_where_exchanges_cost_more_they_are_rarer(seconds: float, every: float) -> None:
    """100 examples a second in minibatches of 4, and an exchange that takes so many seconds."""
    kernel = Kernel()
    node = SimulatedNode(kernel, learner(0))
    found: list[int] = []

    def work() -> None:
        pace = ExchangePace("auto", 1, node)
        for _ in range(12):
            done = 0
            while done < max(pace.every, 1):
                node.sleep(0.04)
                pace.trained(4)
                done += 4
            found.append(pace.every)
            pace.exchanged(seconds)

    kernel.main(node, work)
    kernel.run()
    assert found[0] == 4
    assert found[-1] == pytest.approx(every, rel=0.05)
