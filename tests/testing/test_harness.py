"""The toy learners, their ledgers and their faults do what the suite takes for granted."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from support.delivery_orders import Stretch, walk_stretches
from unisono.fabric import COORDINATOR, learner
from unisono.fabric.simulated.kernel import DeadlockError
from unisono.fabric.simulated.schedulers import ExhaustiveScheduler, SeededScheduler
from unisono.strategies import AllReduce, Averaging, Sharding, Solo
from unisono.strategies.base import RoundPlan
from unisono.testing import invariants
from unisono.testing.cluster import ToyRun
from unisono.testing.coverage import Coverage
from unisono.testing.faults import (
    Cut,
    Join,
    Kill,
    KillCoordinator,
    Pause,
    draw_faults,
    learners_hit,
)
from unisono.testing.ledger import Entry, Kind, Ledger
from unisono.testing.losses import Marks, Targets
from unisono.testing.properties import check_schedule, draw_scenario
from unisono.testing.simulated import ToyCluster

STATIC = Averaging(every=8, sharding=Sharding.STATIC)
DYNAMIC = Averaging(every=8, sharding=Sharding.DYNAMIC)


def run(**options: object) -> ToyRun:
    settings: dict[str, object] = {"strategy": DYNAMIC, "learners": 3, "total": 40, **options}
    return ToyCluster(**settings).run()  # type: ignore[arg-type]


def test_a_toy_makes_the_steps_of_its_loss() -> None:
    loss = Targets(distance=2.0)
    result = run(strategy=Solo(), learners=1, total=7, loss=loss, rate=0.3).survivors[0]
    x = np.zeros(loss.dimension)
    for position in range(7):
        x = x - 0.3 * (x - loss.load(position).numpy())
    assert result.final is not None
    np.testing.assert_allclose(result.final, x, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_replays_to_the_same_bytes(seed: int) -> None:
    faults = [Kill(3.3, 1), KillCoordinator(5.0), Join(6.0, 3), Cut(7.0, 2, 14.0)]
    runs = [run(scheduler=SeededScheduler(seed), faults=faults) for _ in range(2)]
    one, two = ([(r.address, r.steps, r.final) for r in x.results] for x in runs)
    for (a, steps, final), (b, other_steps, other) in zip(one, two, strict=True):
        assert (a, steps) == (b, other_steps)
        assert (final is None) == (other is None)
        assert final is None or np.array_equal(final, other)
    assert runs[0].coverage == runs[1].coverage


def test_seeds_make_different_schedules() -> None:
    orders = {tuple(run(scheduler=SeededScheduler(seed)).coverage.trained) for seed in range(5)}
    assert len(orders) > 1


def test_a_killed_learner_trains_nothing_more() -> None:
    ended = run(faults=[Kill(4.5, 1)])
    assert ended.results[1].final is None
    assert len(ended.results[1].steps) == 4
    assert ended.state.lost == [learner(1)]


def test_a_slow_learner_trains_less() -> None:
    ended = run(slowness={1: 5.0})
    fast, slow = len(ended.results[0].steps), len(ended.results[1].steps)
    assert 3 * slow < fast


def test_a_short_pause_costs_nothing() -> None:
    ended = run(faults=[Pause(4.5, 1, 3.0)])
    assert ended.state.lost == []
    assert ended.coverage.repeated() == []


def test_a_run_that_cannot_end_is_stuck_and_says_who_waits() -> None:
    with pytest.raises(DeadlockError, match="learner 0:main"):
        run(learners=2, faults=[Pause(2.0, 0, 1e6)], timeout=1e9, limit=1e4)


def test_marks_tell_who_brought_a_position() -> None:
    marks = Marks(6, 2, 0.1)
    ended = run(strategy=STATIC, learners=2, total=6, loss=marks)
    assert ended.survivors[0].consensus is not None
    table = marks.read(ended.survivors[0].consensus)
    by = {position: who for who, position in ended.coverage.trained}
    for position, row in enumerate(table):
        assert np.flatnonzero(row).tolist() == [4 * by[position].number]


def test_coverage_knows_what_is_missing_and_what_was_repeated() -> None:
    coverage = Coverage()
    for who, position in ((0, 0), (1, 2), (0, 2), (1, 3)):
        coverage.train(learner(who), position)
    assert coverage.missing(5) == [1, 4]
    assert coverage.repeated() == [2]


def entry(kind: Kind, value: float, round_: int = 0, weight: int = 0) -> Entry:
    return Entry(kind, round_, np.array([value]), weight)


def test_an_exchange_is_what_went_out_and_all_that_came_back() -> None:
    ledger = Ledger(
        [
            entry(Kind.BEGIN, 0.0),
            entry(Kind.ADD, 9.0),
            entry(Kind.SNAPSHOT, 1.0, 0, 4),
            entry(Kind.STEP, 5.0),
            entry(Kind.ADD, 2.0),
            entry(Kind.ADD, 3.0),
            entry(Kind.SNAPSHOT, 7.0, 1, 5),
            entry(Kind.REPLACE, 4.0, 1),
        ]
    )
    found = [(e.round, e.gave[0], e.weight, e.moved[0]) for e in ledger.exchanges()]
    assert found == [(0, 1.0, 4, 5.0), (1, 7.0, 5, -3.0)]


def spoiled(ended: ToyRun, **changes: object) -> ToyRun:
    """The run, with something else in its first result."""
    first = replace(ended.results[0], **changes)  # type: ignore[arg-type]
    return replace(ended, results=[first, *ended.results[1:]])


def test_each_law_can_be_broken() -> None:
    marks = Marks(40, 3, 0.1)
    ended = run(loss=marks)
    final = ended.results[0].final
    assert final is not None
    elsewhere = final + 1e-6
    with pytest.raises(AssertionError, match="was lost"):
        invariants.nothing_lost(spoiled(ended, final=elsewhere))
    with pytest.raises(AssertionError, match="final parameters of"):
        invariants.same_end(spoiled(ended, final=elsewhere), exactly=False)
    with pytest.raises(AssertionError, match="consensus of"):
        invariants.same_consensus(spoiled(ended, consensus=elsewhere), exactly=False)
    with pytest.raises(AssertionError, match="not the same bits"):
        invariants.same_consensus(spoiled(ended, consensus=final * (1 + 1e-15)), exactly=True)
    with pytest.raises(AssertionError, match="by the steps of 0 learners"):
        invariants.kept_once(spoiled(ended, consensus=final * 0.0), marks)
    with pytest.raises(AssertionError, match="nobody trained"):
        invariants.all_trained(replace(ended, coverage=Coverage()), calm=True)
    ended.coverage.train(learner(0), 0)
    invariants.all_trained(ended, calm=False)
    with pytest.raises(AssertionError, match="trained more than once"):
        invariants.all_trained(ended, calm=True)
    ended.state.pool.counts.returned += 1
    with pytest.raises(AssertionError, match="handed out 40"):
        invariants.all_committed(ended)


def test_faults_leave_somebody_alive() -> None:
    for seed in range(300):
        learners = 1 + seed % 5
        faults = draw_faults(random.Random(seed), learners, 30.0)
        assert sum(isinstance(f, Kill) for f in faults) < learners
        assert learners_hit(faults) <= set(range(learners))


def test_random_scenarios_have_all_kinds_of_faults() -> None:
    faults = [f for seed in range(100) for f in draw_scenario(AllReduce, seed, faults=True).faults]
    assert {type(f) for f in faults} == {Kill, KillCoordinator, Pause, Cut, Join}


def test_few_random_runs_lose_their_model() -> None:
    """A run whose every learner is struck may give up; if many did, the suite would be idle."""
    given_up = 0
    for seed in range(50):
        try:
            draw_scenario(lambda: DYNAMIC, seed, faults=True).cluster.run()
        except Exception:
            given_up += 1
    assert given_up < 4


class Unfit(Averaging):
    """Fails as soon as somebody joins."""

    def round_plan(self, batch_size: int) -> RoundPlan:
        raise RuntimeError("no plan")


def test_a_failing_schedule_names_its_seed() -> None:
    with pytest.raises(AssertionError, match=r"seed 3: .*replay with check_schedule\(make, 3, "):
        check_schedule(lambda: Unfit(every=8), 3)


def test_a_stretch_walks_the_orders_of_its_deliveries_only() -> None:
    def orders(scheduler: ExhaustiveScheduler) -> None:
        ToyCluster(strategy=STATIC, learners=2, total=4, scheduler=scheduler, prefetch=0).run()

    nothing = Stretch(1000, 5)
    assert nothing.walk(orders, bound=10)
    assert nothing.orders == 1
    walked = walk_stretches(orders, 2, step=10)
    assert walked.complete
    assert walked.deliveries > 30
    assert not walk_stretches(orders, 6, step=100, bound=3).complete


def test_the_coordinator_can_be_killed_twice_in_a_row() -> None:
    toys = ToyCluster(
        strategy=DYNAMIC,
        learners=2,
        total=20,
        faults=[KillCoordinator(3.0, 2.0), KillCoordinator(4.0, 2.0)],
    )
    ended = toys.run()
    assert COORDINATOR not in {r.address for r in ended.results}
    invariants.all_committed(ended)
