"""The coordinator in whole runs: killed anywhere; with learners that die, sleep or come late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from unisono.coordinator.client import Abandoned
from unisono.coordinator.directives import Failure
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.messages import Command
from unisono.coordinator.service import PATIENCE
from unisono.errors import Cause, UserError
from unisono.fabric import Cancelled, Fabric, learner
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.strategies import AllReduce, Averaging, GossipRandom, Sharding, Solo
from unisono.strategies.base import Strategy
from unisono.testing import invariants
from unisono.testing.cluster import ToyRun
from unisono.testing.coverage import Coverage
from unisono.testing.faults import Cut, Fault, Join, Kill, KillCoordinator, Pause
from unisono.testing.losses import Marks
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import ToyLearner

ALLREDUCE = AllReduce()
STATIC = Averaging(every=8, sharding=Sharding.STATIC)
DYNAMIC = Averaging(every=8, sharding=Sharding.DYNAMIC)
ALL = [ALLREDUCE, STATIC, DYNAMIC]
NAMES = ["allreduce", "static", "dynamic"]
TIMEOUT = 10.0


def cluster(
    strategy: Strategy, learners: int, total: int, *, alike: bool = False, **options: Any
) -> ToyCluster:
    marks = Marks(total, learners + 2, 0.1, alike)
    return ToyCluster(
        strategy=strategy, learners=learners, total=total, loss=marks, timeout=TIMEOUT, **options
    )


def check(toys: ToyCluster, run: ToyRun, *, calm: bool = False) -> ToyRun:
    assert isinstance(toys.loss, Marks)
    invariants.all_committed(run)
    invariants.all_trained(run, calm=calm)
    invariants.nothing_lost(run)
    invariants.same_end(run, exactly=toys.strategy is not DYNAMIC)
    if not toys.committed:
        invariants.kept_once(run, toys.loss)
    return run


def run_with(strategy: Strategy, learners: int, total: int, *faults: Fault) -> ToyRun:
    toys = cluster(strategy, learners, total, faults=faults)
    return check(toys, toys.run())


class Deadly(MemoryJournal):
    """Kills the coordinator at one of its writes: before it is on the disk, or after."""

    def __init__(self, at: int, *, written: bool) -> None:
        super().__init__()
        self.writes = 0
        self.cluster: ToyCluster | None = None
        self._at = at
        self._written = written

    def append(self, commands: Sequence[Command]) -> None:
        self.writes += 1
        dies = self.writes == self._at
        if self._written or not dies:
            super().append(commands)
        if dies:
            assert self.cluster is not None
            self.cluster.kill_coordinator(back_after=0.5)
            raise Cancelled("killed")


@pytest.mark.parametrize("alike", [False, True], ids=["apart", "alike"])
@pytest.mark.parametrize("written", [False, True], ids=["unwritten", "written"])
@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_a_coordinator_killed_at_any_write_loses_nothing(
    strategy: Strategy, written: bool, alike: bool
) -> None:
    """Each write of a short run in turn; no minibatch is trained twice because of it."""
    at, writes = 0, 1
    while at < writes:
        at += 1
        journal = Deadly(at, written=written)
        toys = cluster(strategy, 2, 9, alike=alike, journal=journal)
        journal.cluster = toys
        run = check(toys, toys.run(), calm=True)
        assert len(run.survivors) == 2
        writes = max(writes, journal.writes)
    assert at > (7 if alike else 10)


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_a_coordinator_killed_at_any_time_loses_nothing(strategy: Strategy) -> None:
    """Between the writes, too: messages of a twentieth of a second are on their way then."""
    span = 9.0
    times = [0.03 * step for step in range(int(span / 0.03))]
    for at in times[::3]:
        toys = cluster(
            strategy,
            2,
            9,
            network=SimulatedNetwork(latency=0.05),
            faults=[KillCoordinator(at, back_after=0.4)],
        )
        run = check(toys, toys.run(), calm=True)
        assert len(run.survivors) == 2, at


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_a_coordinator_killed_again_and_again(strategy: Strategy) -> None:
    faults = [KillCoordinator(0.2 + 1.1 * n, back_after=0.3) for n in range(15)]
    toys = cluster(strategy, 3, 30, faults=faults)
    check(toys, toys.run(), calm=True)


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_learners_that_beat_before_the_coordinator_is_there_are_not_refused(
    strategy: Strategy,
) -> None:
    run = run_with(strategy, 3, 12, KillCoordinator(0.001, back_after=3 * TIMEOUT / 5))
    assert [r.address.incarnation for r in run.results] == [0, 0, 0]


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
@pytest.mark.parametrize("kind", [Pause, Cut])
def test_one_held_for_dead_is_refused_and_comes_back(
    strategy: Strategy, kind: type[Pause] | type[Cut]
) -> None:
    run = run_with(strategy, 2, 80, kind(3.5, 1, 2 * TIMEOUT))
    assert run.state.lost == [learner(1)]
    assert [r.address.incarnation for r in run.results] == [0, 1]
    assert all(r.final is not None for r in run.results)


@pytest.mark.parametrize("strategy", [*ALL, Solo()], ids=[*NAMES, "solo"])
@pytest.mark.parametrize("kind", [Pause, Cut])
def test_the_last_that_has_the_model_is_waited_for(
    strategy: Strategy, kind: type[Pause] | type[Cut]
) -> None:
    """Alone and silent: nobody could go on without it, so it goes on where it was."""
    run = run_with(strategy, 1, 12, kind(3.5, 0, 3 * TIMEOUT))
    assert run.state.lost == []
    assert run.coverage.repeated() == []


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_of_several_silent_ones_the_last_heard_of_is_waited_for(strategy: Strategy) -> None:
    run = run_with(strategy, 3, 30, *(Cut(3.5 + 0.1 * n, n, 2 * TIMEOUT) for n in range(3)))
    assert len(run.state.lost) == 2
    assert [r.address.incarnation for r in run.results if r.final is not None].count(0) == 1


def lost(strategy: Strategy, learners: int, total: int, *faults: Fault) -> Failure:
    toys = cluster(strategy, learners, total, faults=faults)
    with pytest.raises(Cancelled) as end:
        toys.run()
    assert isinstance(end.value.__cause__, Abandoned)
    return end.value.__cause__.failure


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_orphans_give_up(strategy: Strategy) -> None:
    """Those who had the model are dead; a stranger would begin from nothing."""
    faults = [Join(22.49, 2), Kill(22.5, 0), Kill(22.5, 1)]
    failure = lost(strategy, 2, 120, *faults)
    assert failure.cause is Cause.MODEL_LOST
    assert failure.text.startswith("every learner that had the model is gone")
    assert "\n" not in failure.text


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_one_that_slept_too_long_finds_its_run_lost(strategy: Strategy) -> None:
    failure = lost(strategy, 1, 60, Pause(25.0, 0, 1.5 * PATIENCE * TIMEOUT))
    assert failure.cause is Cause.MODEL_LOST


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
def test_before_anything_is_committed_a_stranger_may_begin(strategy: Strategy) -> None:
    run = run_with(strategy, 1, 12, Join(0.4, 1), Kill(0.5, 0))
    assert run.results[1].final is not None
    assert sorted(run.results[1].steps) == list(range(12))


@pytest.mark.parametrize("strategy", [*ALL, Solo()], ids=[*NAMES, "solo"])
@pytest.mark.parametrize("left", [1, 7, 100])
@pytest.mark.parametrize("learners", [1, 2, 5])
def test_runs_end_whatever_is_left(strategy: Strategy, left: int, learners: int) -> None:
    """A run that goes on, with fewer minibatches than learners, and with many."""
    if isinstance(strategy, Solo):
        learners = 1
    total = 103
    committed = [(0, 1), (2, 2 + total - left - 1)] if left < total - 1 else []
    done = sum(b - a for a, b in committed)
    toys = cluster(strategy, learners, total, committed=committed)
    run = check(toys, toys.run(), calm=True)
    assert run.state.pool.counts.committed == total - done
    assert all(r.final is not None for r in run.results)


@dataclass(kw_only=True)
class Unlike(ToyCluster):
    """Learner 1 means to train something else."""

    def toy(self, fabric: Fabric, coverage: Coverage) -> ToyLearner:
        toy = super().toy(fabric, coverage)
        return replace(toy, total=self.total + 1) if fabric.address.number == 1 else toy


def test_unlike_jobs_end_the_run_in_one_line() -> None:
    line = "^the learners differ in the number of minibatches: 12 and 13$"
    with pytest.raises(UserError, match=line):
        Unlike(strategy=STATIC, learners=2, total=12).run()


def test_solo_refuses_company_in_one_line() -> None:
    with pytest.raises(UserError, match="solo is for one learner and there are 2: choose another"):
        ToyCluster(strategy=Solo(), learners=2, total=12).run()


def test_a_run_begins_without_those_who_never_come() -> None:
    """Two were expected, and one came: after a while it begins."""
    toys = cluster(STATIC, 2, 12, faults=[Kill(0.0, 1)])
    run = check(toys, toys.run())
    assert run.results[0].steps == list(range(12))


def test_a_learner_that_comes_late_takes_part() -> None:
    for strategy in ALL:
        run = run_with(strategy, 2, 300, Join(5.0, 2))
        assert len(run.results[2].steps) > 5
        assert run.results[2].final is not None
        assert run.coverage.repeated() == []


@dataclass(kw_only=True)
class AllStopped(ToyCluster):
    """Ctrl-Z on everything, for very long, and then fg."""

    def _start_coordinator(self) -> None:
        super()._start_coordinator()
        self.kernel.at(4.5, self._stop)

    def _stop(self) -> None:
        for address in list(self.kernel.nodes):
            self.kernel.pause(address)
            at = self.kernel.now + 10 * PATIENCE * TIMEOUT
            self.kernel.at(at, lambda address=address: self.kernel.resume(address))  # type: ignore[misc]


@pytest.mark.parametrize("strategy", ALL, ids=NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_a_whole_run_that_was_stopped_goes_on(strategy: Strategy, seed: int) -> None:
    run = AllStopped(
        strategy=strategy, learners=3, total=40, timeout=TIMEOUT, scheduler=SeededScheduler(seed)
    ).run()
    assert run.state.lost == []
    assert run.coverage.repeated() == []
    invariants.all_committed(run)


@pytest.mark.parametrize("most", [1, 5, 23])
@pytest.mark.parametrize("strategy", [*ALL, GossipRandom(every=4)], ids=[*NAMES, "gossip-random"])
def test_a_coordinator_goes_on_from_a_compacted_journal(strategy: Strategy, most: int) -> None:
    """Killed again and again, with learners that die and come late."""
    faults = [KillCoordinator(at, back_after=0.5) for at in (0.5, 2.2, 5.1, 8.4, 11.3)]
    toys = cluster(
        strategy,
        3,
        60,
        faults=[*faults, Kill(4.0, 2), Join(6.0, 3)],
        journal=MemoryJournal(most),
    )
    run = toys.run()
    invariants.all_committed(run)
    assert toys.journal.snapshot is not None
