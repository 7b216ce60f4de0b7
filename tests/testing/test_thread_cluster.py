"""The same checks on real threads, switched as often as Python can, and over sockets."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.soak import SOAK
from support.thread_cluster import ThreadCluster
from unisono.coordinator.messages import Commit
from unisono.fabric import Vector
from unisono.fabric.simulated.kernel import DeadlockError
from unisono.strategies import (
    ADPSGD,
    AllReduce,
    AveragedServer,
    Averaging,
    DelayByOne,
    Elastic,
    GossipFixed,
    GossipRandom,
    PushKind,
    Server,
    Sharding,
    Solo,
)
from unisono.strategies.averaging import AveragingParticipant
from unisono.strategies.base import Replica
from unisono.strategies.engines.sync_rounds import Contribution
from unisono.testing import invariants
from unisono.testing.losses import Marks
from unisono.testing.properties import Promises, check_alone, check_on

STRATEGIES: dict[str, Callable[[], Any]] = {
    "allreduce": AllReduce,
    "static": lambda: Averaging(every=8, sharding=Sharding.STATIC),
    "dynamic": lambda: Averaging(every=8, sharding=Sharding.DYNAMIC),
    "gossip-fixed": lambda: GossipFixed(every=8),
    "gossip-random": lambda: GossipRandom(every=8),
    "adpsgd": lambda: ADPSGD(every=4),
    "delay": DelayByOne,
    "server": lambda: Server(push_every=2, shards=3),
    "server-waiting": lambda: Server(push=PushKind.GRADIENT, overlap=False, shards=2),
    "averaged-server": lambda: AveragedServer(push_every=1, shards=2),
    "elastic": lambda: Elastic(push_every=2, shards=2),
}
MIXES = Promises()
PAIRS = Promises(pairs=True)
SERVED = Promises(plain=False, keeps_mean=False, mixes=False)


def promises(name: str) -> Promises:
    if "server" in name or name == "elastic":
        return replace(SERVED, plain=name == "server-waiting")
    return PAIRS if name in ("gossip-fixed", "gossip-random", "adpsgd") else MIXES


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads are switched every few microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a name that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="u") as name:
        yield Path(name)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("repetitions", [1, pytest.param(4 * SOAK, marks=pytest.mark.long)])
def test_the_suite_holds_on_threads(name: str, repetitions: int) -> None:
    for _ in range(repetitions):
        check_on(ThreadCluster, STRATEGIES[name], promises=promises(name))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_suite_holds_over_sockets(name: str, folder: Path) -> None:
    cluster = partial(ThreadCluster, sockets=folder)
    check_on(cluster, STRATEGIES[name], promises=promises(name))


@pytest.mark.long
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("learners", [2, 3, 5, 8])
def test_many_runs_on_threads(name: str, learners: int) -> None:
    for repetition in range(6 * SOAK):
        total = 60
        marks = Marks(total, learners, 0.1)
        run = ThreadCluster(
            strategy=STRATEGIES[name](),
            learners=learners,
            total=total,
            loss=marks,
            slowness={repetition % learners: 3.0},
            prefetch=repetition % 3,
        ).run()
        invariants.all_committed(run)
        invariants.all_trained(run, calm=True)
        invariants.nothing_lost(run)
        if promises(name).keeps_mean:
            (invariants.sum_kept if promises(name).pairs else invariants.mean_kept)(run)
        invariants.kept_once(run, marks)
        invariants.same_end(run, exactly=name != "dynamic")


def test_solo_is_the_yardstick_on_threads_too() -> None:
    run = ThreadCluster(strategy=Solo(), learners=1, total=9).run()
    assert run.survivors[0].steps == list(range(9))


class Waiting(Averaging):
    """Learner 1 waits for something that never comes."""

    def participant(self, replica: Replica) -> AveragingParticipant:
        class Participant(AveragingParticipant):
            def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
                if self.fabric.address.number == 1:
                    self.fabric.receive("never")
                super().conclude(mean, contribution, members)

        return Participant(replica, self)


@pytest.mark.timeout(200)
def test_a_run_that_hangs_is_ended() -> None:
    with pytest.raises(DeadlockError, match=r"not over after 1 s: .*learner 1"):
        ThreadCluster(strategy=Waiting(every=8), learners=2, total=20, limit=1.0).run()


class Failing(Averaging):
    """Learner 1 has a bug."""

    def participant(self, replica: Replica) -> AveragingParticipant:
        class Participant(AveragingParticipant):
            def end_of_round(self, sync_round: int) -> None:
                if self.fabric.address.number == 1:
                    raise ZeroDivisionError("a bug")
                super().end_of_round(sync_round)

        return Participant(replica, self)


def test_a_bug_in_one_learner_ends_the_run_with_it() -> None:
    with pytest.raises(ZeroDivisionError, match="a bug"):
        ThreadCluster(
            strategy=Failing(every=8, sharding=Sharding.STATIC), learners=2, total=20
        ).run()


def test_a_special_case_is_found_on_threads_too() -> None:
    class Lonely(AveragingParticipant):
        def end_of_round(self, sync_round: int) -> None:
            self.client.tell(Commit({self.fabric.address: self.replica.take_work().note()}))

    class Special(Averaging):
        def participant(self, replica: Replica) -> AveragingParticipant:
            return Lonely(replica, self)

    with pytest.raises(AssertionError, match="no round happened"):
        check_alone(lambda: Special(every=8, sharding=Sharding.STATIC), on=ThreadCluster)
