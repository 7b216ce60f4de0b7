"""Servers: members that hold the shards and train nothing, in simulation and on threads."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from support.soak import SOAK
from support.thread_cluster import ThreadCluster
from unisono.coordinator.client import Abandoned
from unisono.coordinator.messages import Failed
from unisono.errors import Cause, UserError
from unisono.fabric import Addresses, Cancelled, Fabric, Precision, learner, server
from unisono.learner.planner import Minibatch
from unisono.strategies import AveragedServer, Averaging, Elastic, PushKind, Server
from unisono.strategies.base import Strategy, check_servers
from unisono.strategies.engines.shards import Copy, holder, runs
from unisono.testing import Promises, invariants
from unisono.testing.cluster import Cluster
from unisono.testing.coverage import Coverage
from unisono.testing.faults import Cut, Fault, Join, Kill, KillCoordinator, Pause
from unisono.testing.ledger import Kind
from unisono.testing.losses import Marks, Targets
from unisono.testing.properties import Make, check_commits, check_schedules, draw_scenario
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import ToyLearner

GRADIENT = PushKind.GRADIENT
STRATEGIES: dict[str, Make] = {
    "server": lambda: Server(push_every=2, shards=1),
    "waiting": lambda: Server(push_every=1, overlap=False, shards=5),
    "gradient": lambda: Server(push=GRADIENT, push_every=2, shards=3),
    "bound": lambda: Server(push_every=1, shards=2, bound=11),
    "warm": lambda: Server(push_every=1, shards=2, warm_start=0.3),
    "int8": lambda: Server(push_every=2, shards=2, precision=Precision.INT8),
    "elastic": lambda: Elastic(push_every=2, shards=2),
}
STRICT = Promises(plain=False, keeps_mean=False, mixes=False)
LOSES = {name: 2 if name == "server" else 1 for name in STRATEGIES}
"""Deaths, of learners too, from which on some work may be lost; as in the suite."""
FEW, MANY = 8, 100 * SOAK


def test_servers_hold_all_shards_as_long_as_there_are_any() -> None:
    learners = [learner(n) for n in range(3)]
    members = Addresses([*learners, server(3), server(4)])
    assert members.learners == tuple(learners)
    assert runs(range(5), 5, members) == {(0, 3): server(3), (3, 5): server(4)}
    assert {holder(s, 4, Addresses(learners)) for s in range(4)} == set(learners)
    assert {holder(s, 4, Addresses([*learners, server(9)])) for s in range(4)} == {server(9)}


def server_faults(source: random.Random, learners: int, servers: int, span: float) -> list[Fault]:
    """Something happens to every server, and perhaps to the coordinator; to no learner."""
    faults: list[Fault] = []
    for number in range(learners, learners + servers):
        luck, at = source.random(), source.uniform(0, span)
        if luck < 0.6:
            faults.append(Kill(at, number))
        elif luck < 0.8:
            faults.append(Pause(at, number, source.uniform(0, 30)))
        else:
            faults.append(Cut(at, number, source.uniform(0, 30)))
    if source.random() < 0.3:
        faults.append(KillCoordinator(source.uniform(0, span), source.uniform(0.01, 3)))
    return faults


def check_server_deaths(make: Make, seeds: range) -> None:
    """No minibatch is lost, or trained by two, whatever happens to servers: learners live."""
    for seed in seeds:
        servers = 1 + seed % 3
        scenario = draw_scenario(make, seed, faults=False, servers=servers)
        cluster = scenario.cluster
        span = 1.5 * cluster.total / cluster.learners + 2
        cluster.faults = server_faults(random.Random(seed), cluster.learners, servers, span)
        try:
            run = cluster.run()
            invariants.all_committed(run)
            invariants.kept_once(run, scenario.marks)
            invariants.nothing_lost(run)
            invariants.same_consensus(run, exactly=False)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}; faults {cluster.faults}") from error
        alive = {r.address.number for r in run.survivors}
        assert alive >= set(range(cluster.learners))
        assert not any(r.steps for r in run.results if r.address.serves)
        lost = sum(not who.serves for who in run.state.lost)
        assert (lost, run.state.pool.counts.returned) == (0, run.state.pool.counts.dropped)


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_is_lost_with_servers(name: str) -> None:
    check_server_deaths(STRATEGIES[name], range(FEW))


@pytest.mark.parametrize("name", STRATEGIES)
def test_learners_and_servers_die_come_and_are_cut_off(name: str) -> None:
    promises = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=LOSES[name])
    for servers in (1, 2):
        check_schedules(STRATEGIES[name], range(FEW), servers=servers, promises=promises)


@pytest.mark.long
@pytest.mark.timeout(300 + 300 * SOAK)
@pytest.mark.parametrize("name", STRATEGIES)
def test_many_schedules(name: str) -> None:
    seeds = range(1000, 1000 + MANY)
    check_server_deaths(STRATEGIES[name], seeds)
    promises = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=LOSES[name])
    for servers in (1, 2, 3):
        check_schedules(STRATEGIES[name], seeds, servers=servers, promises=promises)


def test_a_shard_that_begins_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If whoever takes a shard over did not take the newest copy, the laws above would say so."""
    monkeypatch.setattr(Copy, "newer_than", lambda self, other: False)
    with pytest.raises(AssertionError, match="by the steps of 0 learners"):
        check_server_deaths(STRATEGIES["server"], range(FEW))


@pytest.mark.parametrize("on", [ToyCluster, ThreadCluster])
@pytest.mark.parametrize("learners", [1, 4])
def test_each_minibatch_is_in_the_model_once(on: type[Cluster], learners: int) -> None:
    check_commits(STRATEGIES["waiting"], learners, on=partial(on, servers=2), promises=STRICT)


@pytest.mark.parametrize(
    "strategy",
    [
        Server(push_every=3),
        Server(push_every=2, overlap=False, shards=3),
        Server(push=GRADIENT, push_every=1, overlap=False),
        AveragedServer(push_every=2, overlap=False, average_from=0.3),
        Elastic(push_every=2, overlap=False),
        Elastic(push_every=2),
    ],
)
def test_one_learner_has_the_same_bits_as_one_that_holds_its_shards(strategy: Strategy) -> None:
    """Its updates travel to another process, and are otherwise the same."""
    loss = Targets(dimension=23, distance=5.0)
    held, served = (
        ToyCluster(strategy=strategy, learners=1, servers=servers, total=31, loss=loss).run()
        for servers in (0, 1)
    )
    for result in served.survivors:
        np.testing.assert_array_equal(result.consensus, held.survivors[0].consensus)
    assert len(served.survivors) == 2


@pytest.mark.parametrize("learners", [1, 3])
def test_a_change_counts_for_its_share_of_the_learners_alone(learners: int) -> None:
    run = ToyCluster(
        strategy=Server(push_every=3, shards=3),
        learners=learners,
        servers=2,
        total=31,
        loss=Targets(dimension=23, distance=5.0),
        slowness={1: 1.7},
    ).run()
    entries = [entry for result in run.results for entry in result.ledger.entries]
    steps = [entry.vector for entry in entries if entry.kind is Kind.STEP]
    assert len(steps) == 31
    expected = np.sum(steps, axis=0) / learners
    np.testing.assert_allclose(run.survivors[0].consensus, expected, atol=1e-12)


def test_a_new_learner_goes_on_with_what_the_server_has() -> None:
    """The only learner dies; what it had pushed is in the model, and not trained again."""
    marks = Marks(40, 4, 0.1)
    faults = [Kill(17.3, 0), Join(20.0, 2)]
    run = ToyCluster(
        strategy=Server(push_every=2, shards=1),
        learners=1,
        servers=1,
        total=40,
        loss=marks,
        faults=faults,
    ).run()
    invariants.all_committed(run)
    invariants.kept_once(run, marks)
    assert {str(r.address) for r in run.survivors} == {"learner-2.0#0", "server-1.0#0"}
    first, second = run.results[0].steps, run.results[2].steps
    assert len(first) > 12 and len(set(first) & set(second)) <= 4


def test_a_run_without_learners_ends() -> None:
    run = ToyCluster(
        strategy=Server(), learners=1, servers=2, total=40, faults=[Kill(7.3, 0)], timeout=2.0
    )
    with pytest.raises(Cancelled) as caught:
        run.run()
    reason = caught.value.__cause__
    assert isinstance(reason, Abandoned)
    assert reason.failure.cause is Cause.MODEL_LOST
    assert reason.line.startswith("every learner is gone; go on from a checkpoint")


class Diverging(ToyCluster):
    """The first life of learner 0 says before its sixth step that it has diverged."""

    def toy(self, fabric: Fabric, coverage: Coverage) -> ToyLearner:
        toy = super().toy(fabric, coverage)
        count = toy.before_step
        assert count is not None

        def before_step(toy: ToyLearner, minibatch: Minibatch) -> None:
            if toy.fabric.address == learner(0) and len(toy.result.steps) == 5:
                toy.session.client.tell(Failed(Cause.DIVERGED, "not finite"))
            count(toy, minibatch)

        toy.before_step = before_step
        return toy


def test_a_run_whose_only_learner_diverges_has_diverged() -> None:
    """A server has the model, but only a learner can go on."""
    with pytest.raises(Cancelled) as caught:
        Diverging(strategy=Server(), learners=1, servers=2, total=40).run()
    reason = caught.value.__cause__
    assert isinstance(reason, Abandoned) and reason.failure.cause is Cause.DIVERGED
    run = Diverging(strategy=Server(), learners=2, servers=2, total=40).run()
    invariants.all_committed(run)
    assert run.state.lost == [learner(0)]


def test_only_a_strategy_with_shards_has_servers() -> None:
    for strategy in (Server(), AveragedServer(), Elastic()):
        check_servers(strategy)
    with pytest.raises(UserError, match="averaging has no shards that servers could hold"):
        check_servers(Averaging())
