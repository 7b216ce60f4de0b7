"""A journal whose disk is full: all wait, nothing is claimed that is not on it, and a run ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from support.desk import Desk
from unisono.coordinator.client import Abandoned
from unisono.coordinator.directives import Abandon, Failure
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.messages import (
    CONTROL,
    Command,
    Failed,
    Join,
)
from unisono.coordinator.service import PATIENCE
from unisono.coordinator.state import State
from unisono.errors import Cause
from unisono.fabric import Cancelled, learner
from unisono.strategies import AllReduce, Averaging, Server, Sharding
from unisono.strategies.base import Strategy
from unisono.testing import invariants
from unisono.testing.faults import Fault, KillCoordinator
from unisono.testing.losses import Marks
from unisono.testing.simulated import ToyCluster

TIMEOUT = 10.0
STRATEGIES = {
    "allreduce": AllReduce(),
    "static": Averaging(every=8, sharding=Sharding.STATIC),
    "dynamic": Averaging(every=8, sharding=Sharding.DYNAMIC),
    "server": Server(),
}


@dataclass
class Full(MemoryJournal):
    """Takes nothing from one time of the run to another."""

    since: float
    until: float

    def __post_init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.cluster: ToyCluster | None = None

    def append(self, commands: Sequence[Command]) -> None:
        assert self.cluster is not None
        if self.since <= self.cluster.kernel.now < self.until:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(commands)


def cluster(strategy: Strategy, journal: Full, *faults: Fault) -> ToyCluster:
    toys = ToyCluster(
        strategy=strategy,
        learners=3,
        total=30,
        loss=Marks(30, 5, 0.1),
        timeout=TIMEOUT,
        journal=journal,
        faults=faults,
    )
    journal.cluster = toys
    return toys


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("since", [0.0, 0.3, 3.1, 6.7])
def test_a_disk_that_is_full_for_a_while_costs_time_alone(
    name: str, since: float, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Full(since, since + 2.5 * TIMEOUT)
    run = cluster(STRATEGIES[name], journal).run()
    invariants.all_committed(run)
    invariants.all_trained(run, calm=True)
    invariants.nothing_lost(run)
    assert journal.refused > 2 and len(run.survivors) == 3 and run.state.lost == []
    assert caplog.messages == [
        "unisono: the coordinator's journal cannot be written (No space left on device): "
        "trying again",
        "unisono: the coordinator's journal is written again",
    ]


@pytest.mark.parametrize("name", ["allreduce", "static", "dynamic"])
@pytest.mark.parametrize("killed", [3.2, 4.0, 7.5, 12.0])
def test_a_coordinator_that_dies_meanwhile_has_promised_nothing(name: str, killed: float) -> None:
    """What it had heard was in nobody's journal, so nobody has an answer to it."""
    journal = Full(3.1, 3.1 + 2 * TIMEOUT)
    run = cluster(STRATEGIES[name], journal, KillCoordinator(killed, back_after=0.5)).run()
    invariants.all_committed(run)
    invariants.all_trained(run, calm=True)
    invariants.nothing_lost(run)
    assert journal.refused > 2 and len(run.survivors) == 3


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_disk_that_stays_full_ends_the_run_for_all(name: str) -> None:
    journal = Full(3.1, 1e9)
    toys = cluster(STRATEGIES[name], journal)
    with pytest.raises(Cancelled) as ended:
        toys.run()
    reason = ended.value.__cause__
    assert isinstance(reason, Abandoned)
    assert reason.line == (
        f"the coordinator's journal could not be written for {PATIENCE * TIMEOUT:g} s (No space "
        "left on device); make room, and go on from a checkpoint with --resume "
        "(in a script: resume=True)"
    )
    assert toys.kernel.now < 3.1 + (PATIENCE + 1) * TIMEOUT
    replayed = State(3)
    for command in journal.replay():
        replayed.apply(command)
    assert len(replayed.pool.committed) < 30 and replayed.failure is None


def test_a_learner_that_comes_after_the_end_is_told_of_it() -> None:
    desk = Desk(2)
    desk.enrol(0)
    desk.tell(0, Failed(Cause.EXCEPTION, "a bug"))
    outputs = desk.tell(1, Join("here"), reply="answers")
    told = [o.body for o in outputs if o.to == learner(1) and o.port == CONTROL.name]
    assert Abandon(Failure(learner(0), Cause.EXCEPTION, "a bug")) in told
