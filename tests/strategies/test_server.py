"""The parameter server: what is applied, dropped, averaged and handed on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from unisono.errors import UserError
from unisono.fabric import Address, Addresses, TensorVector, Vector, learner
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.replica import LearnerReplica
from unisono.strategies import AveragedServer, PushKind, Server, Solo
from unisono.strategies.base import TrainedWork
from unisono.strategies.engines.pushes import Push
from unisono.strategies.engines.server_agent import ServerAgent
from unisono.strategies.engines.server_worker import ServerParticipant
from unisono.strategies.engines.shard_store import ShardStore
from unisono.strategies.engines.shards import Copy, Shard, bounds, holder, runs
from unisono.testing.faults import Fault, Join, Kill
from unisono.testing.ledger import Kind
from unisono.testing.losses import OneTarget, Targets
from unisono.testing.properties import Promises, check_commits, check_schedules
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import ToyUpdater

GRADIENT = PushKind.GRADIENT
MEMBERS = [Addresses(learner(n) for n in range(count)) for count in range(6)]


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("shards", [1, 2, 4, 16])
def test_every_shard_has_one_holder_and_runs_are_all_of_them(shards: int, members: int) -> None:
    who = [holder(s, shards, MEMBERS[members]) for s in range(shards)]
    assert who == sorted(who)
    assert len(set(who)) == min(shards, members)
    found = runs(range(shards), shards, MEMBERS[members])
    assert [s for run in found for s in range(*run)] == list(range(shards))
    assert len(found) == len(set(who))
    edges = [bounds((s, s + 1), shards, 103) for s in range(shards)]
    assert edges[0][0] == 0 and edges[-1][1] == 103
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))


def shard(start: float = 1.0) -> Shard:
    values = TensorVector(torch.full((3,), start, dtype=torch.float64))
    return Shard(values, ToyUpdater(values), Copy())


def test_the_streaming_mean_is_the_mean_of_the_iterates() -> None:
    one, iterates = shard(), []
    source = np.random.default_rng(0)
    for number in range(1, 200):
        gradient = TensorVector(torch.from_numpy(source.standard_normal(3)))
        one.apply("a", number, gradient, [0.1], averages=number > 50)
        if number > 50:
            iterates.append(one.values.tensor.numpy().copy())
    assert one.mean is not None
    np.testing.assert_allclose(one.mean.tensor.numpy(), np.mean(iterates, axis=0), atol=1e-12)
    assert one.averaged == len(iterates)
    assert shard().shown.tensor.tolist() == [1.0, 1.0, 1.0]


def test_a_late_push_of_early_work_is_in_the_mean() -> None:
    one, change = shard(), TensorVector(torch.ones(3, dtype=torch.float64))
    one.apply("a", 1, change, [0.5], averages=True)
    one.apply("b", 1, change, [0.5], averages=False)  # computed before the mean began
    assert one.mean is not None
    assert one.mean.tensor.tolist() == [0.25, 0.25, 0.25]


def test_a_push_is_applied_once_however_often_it_comes() -> None:
    one = shard()
    gradient = TensorVector(torch.ones(3, dtype=torch.float64))
    for number in (1, 1, 2, 1, 2):
        one.apply("a", number, gradient, [0.25], averages=False)
    assert one.values.tensor.tolist() == [0.5, 0.5, 0.5]
    assert (one.copy.version, one.copy.applied) == (2, {"a": 2})


def consensus(strategy: Any, learners: int, **how: Any) -> np.ndarray[Any, Any]:
    run = ToyCluster(
        strategy=strategy,
        learners=learners,
        total=31,
        loss=Targets(dimension=23, distance=5.0),
        **how,
    ).run()
    assert run.survivors[0].consensus is not None
    return run.survivors[0].consensus


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("shards", [2, 7])
def test_sharded_is_unsharded(learners: int, shards: int) -> None:
    """With learners of different speed, so that pushes come in the same order everywhere."""
    slowness = {1: 1.7}
    whole, cut = (
        consensus(
            Server(push=GRADIENT, push_every=1, overlap=False, shards=s),
            learners,
            slowness=slowness,
        )
        for s in (1, shards)
    )
    np.testing.assert_allclose(cut, whole, atol=1e-12)


def test_averaging_changes_nothing_of_the_training() -> None:
    """The mean is never fed back; begun at the end, it is the last iterate."""
    plain = consensus(Server(push=GRADIENT, push_every=1, overlap=False), 2, slowness={1: 1.7})
    late = AveragedServer(push=GRADIENT, push_every=1, overlap=False, average_from=1.0)
    np.testing.assert_array_equal(consensus(late, 2, slowness={1: 1.7}), plain)
    early = AveragedServer(push=GRADIENT, push_every=1, overlap=False, average_from=0.0)
    assert np.abs(consensus(early, 2, slowness={1: 1.7}) - plain).max() > 0.01


def test_several_minibatches_are_one_larger_one() -> None:
    """One learner, m minibatches a push: the weighted mean of gradients at the same point."""
    loss = Targets(dimension=4, distance=2.0)
    run = ToyCluster(
        strategy=Server(push=GRADIENT, push_every=3, overlap=False),
        learners=1,
        total=9,
        loss=loss,
        rate=0.1,
    ).run()
    x = np.zeros(4)
    for first in (0, 3, 6):
        sizes = np.array([1 + p % 4 for p in range(first, first + 3)], dtype=float)
        points = np.array([loss.load(p).numpy() for p in range(first, first + 3)])
        x = x - 0.1 * (sizes[:, None] * (x - points)).sum(axis=0) / sizes.sum()
    np.testing.assert_allclose(run.survivors[0].consensus, x, atol=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_model_is_the_start_and_a_share_of_every_local_step(
    shards: int, learners: int, overlap: bool
) -> None:
    """x = x_0 + (sum of all steps of all learners) / L, whatever was stale or overlapped."""
    run = ToyCluster(
        strategy=Server(push_every=3, overlap=overlap, shards=shards),
        learners=learners,
        total=31,
        loss=Targets(dimension=23, distance=5.0),
        slowness={1: 1.7},
    ).run()
    entries = [entry for result in run.results for entry in result.ledger.entries]
    steps = [entry.vector for entry in entries if entry.kind is Kind.STEP]
    assert len(steps) == 31
    expected = np.sum(steps, axis=0) / learners
    np.testing.assert_allclose(run.survivors[0].consensus, expected, atol=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
def test_one_learner_that_pushes_changes_is_solo(overlap: bool) -> None:
    solo = consensus(Solo(), 1)
    for push_every in (1, 4):
        changes = Server(push_every=push_every, overlap=overlap)
        np.testing.assert_allclose(consensus(changes, 1), solo, atol=1e-12)


def test_local_steps_continue_from_the_pulled_model() -> None:
    """Three learners on equal data move as one: each pulls what the others have pushed."""
    run = ToyCluster(
        strategy=Server(push_every=2, overlap=False),
        learners=3,
        total=120,
        loss=OneTarget(),
        rate=0.3,
    ).run()
    final = run.survivors[0].consensus
    np.testing.assert_allclose(final, OneTarget().load(0).numpy(), atol=1e-3)


def test_what_is_too_late_is_dropped_and_trained_again() -> None:
    run = ToyCluster(
        strategy=Server(push=GRADIENT, push_every=1, overlap=False, bound=2),
        learners=3,
        total=40,
        slowness={2: 6.0},
    ).run()
    counts = run.state.pool.counts
    assert counts.dropped > 0
    assert counts.leased == counts.committed + counts.returned
    assert (counts.committed, counts.returned) == (40, counts.dropped)


def test_what_is_pushed_is_applied_or_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where pushes begin, where shard 0 is stepped on, and where one is given up."""
    counts = {"pushed": 0, "applied": 0, "dropped": 0}

    def count(owner: type, method: str, name: str) -> None:
        honest = getattr(owner, method)

        def counted(self: Any, *args: Any, **options: Any) -> Any:
            counts[name] += 1
            return honest(self, *args, **options)

        monkeypatch.setattr(owner, method, counted)

    count(ServerParticipant, "_begin_push", "pushed")
    count(ServerAgent, "_on_dropped", "dropped")
    count(ToyUpdater, "step", "applied")
    run = ToyCluster(
        strategy=Server(push=GRADIENT, push_every=1, overlap=False, bound=2, shards=1),
        learners=3,
        total=60,
        slowness={0: 5.0},
    ).run()
    assert counts["dropped"] == run.state.pool.counts.dropped > 0
    assert counts["pushed"] == counts["applied"] + counts["dropped"]
    assert counts["applied"] == 60


def test_a_bound_that_would_drop_everything_is_refused() -> None:
    cluster = ToyCluster(
        strategy=Server(push=GRADIENT, push_every=1, overlap=False, bound=1), learners=3, total=30
    )
    with pytest.raises(UserError, match="a staleness bound of 1 would drop every push: with 3"):
        cluster.run()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"push_every": -1}, "push_every"),
        ({"shards": 0}, "shards"),
        ({"bound": -1}, "bound"),
        ({"warm_start": 1.0}, "warm_start"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        Server(**options)


def test_one_learner_trains_the_warm_start_by_itself() -> None:
    strategy = Server(push=GRADIENT, push_every=1, shards=2, warm_start=0.4)
    run = ToyCluster(strategy=strategy, learners=3, total=50).run()
    by = {position: r.address.number for r in run.results for position in r.steps}
    assert {by[position] for position in range(20)} == {0}
    assert {by[position] for position in range(25, 50)} == {0, 1, 2}


@dataclass(frozen=True)
class Noted(Targets):
    """Writes down where learner 0 computes its gradients."""

    points: list[list[float]] = field(default_factory=list)

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        if who.number == 0:
            self.points.append(x.tolist())
        return super().gradient(x, data, who, step)


@pytest.mark.parametrize("kind", PushKind)
def test_the_warm_start_is_solo_and_the_others_begin_with_its_model(
    kind: PushKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes where a solo run does; nobody pushes what it computed at the initial model."""
    stale: list[int] = []
    complete = ServerAgent._complete

    def noted(self: ServerAgent, push: Push) -> None:
        if push.update is not None:
            stale.append(push.stale)
        complete(self, push)

    monkeypatch.setattr(ServerAgent, "_complete", noted)
    loss = Noted(distance=5.0)
    strategy = Server(push=kind, push_every=2, warm_start=0.5)
    run = ToyCluster(strategy=strategy, learners=3, total=80, loss=loss).run()
    assert max(stale) <= 2 * strategy.staleness(3)
    assert len({r.address.number for r in run.results if r.steps}) == 3
    solo = ToyCluster(strategy=Solo(), learners=1, total=40, loss=loss)
    ours, loss.points[:] = loss.points[:40], []
    solo.run()
    np.testing.assert_allclose(ours, loss.points, atol=1e-12)


@pytest.mark.parametrize("kind", PushKind)
def test_the_others_pull_before_their_first_push(
    kind: PushKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of events: their first push is computed at the warm start's model."""
    first: dict[Address, int] = {}
    alone = 0
    begin = ServerParticipant._begin

    def noted(
        self: ServerParticipant, update: Vector | None, rates: Sequence[float], work: TrainedWork
    ) -> None:
        nonlocal alone
        if update is not None:
            first.setdefault(self.fabric.address, self._computed_at)
            alone += self.replica.progress() <= 0.5
        begin(self, update, rates, work)

    monkeypatch.setattr(ServerParticipant, "_begin", noted)
    for seed in range(20):
        first.clear()
        alone = 0
        network = SimulatedNetwork(latency=(0.01, 0.4, 1.7)[seed % 3])
        strategy = Server(push=kind, push_every=2, warm_start=0.5)
        ToyCluster(
            strategy=strategy,
            learners=3,
            total=80,
            scheduler=SeededScheduler(seed),
            network=network,
        ).run()
        assert alone >= 8
        others = [version for who, version in first.items() if who.number != 0]
        assert others and all(version >= alone - 1 for version in others), (seed, first, alone)


def test_a_dead_holder_s_shards_go_on_from_what_others_pulled() -> None:
    """The rest go on; the model that they end with has their own steps from before the death."""
    run = ToyCluster(
        strategy=Server(push=GRADIENT, push_every=1, shards=3),
        learners=3,
        total=60,
        faults=[Kill(6.3, 0)],
    ).run()
    assert [r.address.number for r in run.survivors] == [1, 2]
    assert run.state.pool.over


@pytest.mark.parametrize("kind", PushKind)
def test_committing_what_only_its_learner_has_is_found(
    kind: PushKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work told of too early is lost with the holder of its shard, and nobody redoes it."""
    monkeypatch.setattr(ShardStore, "survives", lambda self, versions: True)
    promises = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=2)
    with pytest.raises(AssertionError, match="by the steps of 0 learners"):
        check_schedules(
            lambda: Server(push=kind, push_every=2, shards=1), range(150, 165), promises=promises
        )


@pytest.mark.parametrize("kind", PushKind)
def test_silence_about_the_dead_is_found(kind: PushKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the model, and nobody tells of, is trained again."""
    monkeypatch.setattr(ShardStore, "work_of", lambda self, gone: [])
    promises = Promises(plain=False, keeps_mean=False, mixes=False, loses_after=2)
    with pytest.raises(AssertionError, match="by the steps of 2 learners"):
        check_schedules(
            lambda: Server(push=kind, push_every=2, shards=1), range(25), promises=promises
        )


def test_it_commits_with_any_number_of_shards() -> None:
    promises = Promises(plain=False, keeps_mean=False, mixes=False)
    for shards in (1, 5, 40):
        check_commits(
            lambda s=shards: Server(push=GRADIENT, push_every=2, shards=s), 3, promises=promises
        )


def restored(
    monkeypatch: pytest.MonkeyPatch, faults: list[Fault], **how: Any
) -> list[dict[str, Any]]:
    """What is told of shards that lost updates with their holder."""
    told: list[dict[str, Any]] = []

    def event(self: LearnerReplica, name: str, **fields: Any) -> None:
        if name == "restored":
            told.append(fields)

    monkeypatch.setattr(LearnerReplica, "event", event)
    strategy = Server(push=GRADIENT, push_every=1, shards=3)
    run = ToyCluster(strategy=strategy, learners=3, total=60, faults=faults, **how).run()
    assert run.state.pool.over
    return told


def test_what_went_with_a_holder_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [each for at in range(605, 620) for each in restored(monkeypatch, [Kill(at / 100, 0)])]
    assert {each["shard"] for each in told} == {0}
    assert all(0 < each["rolled_back"] <= 3 for each in told)


def test_nothing_is_rolled_back_where_nobody_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert restored(monkeypatch, []) == restored(monkeypatch, [Join(6.3, 3)]) == []


def test_nothing_is_rolled_back_by_an_orderly_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners leave one by one, some before others know that all is done."""
    for seed in range(20):
        network = SimulatedNetwork(latency=(0.01, 0.4, 1.7)[seed % 3])
        assert restored(monkeypatch, [], scheduler=SeededScheduler(seed), network=network) == []
