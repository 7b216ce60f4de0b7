"""The suite finds strategies, collectives and pools that were broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from unisono.coordinator.departed import Departed
from unisono.coordinator.messages import Commit
from unisono.fabric import Address, Message, Vector
from unisono.learner.replica import LearnerReplica
from unisono.pool.pool import Pool
from unisono.pool.ranges import Range
from unisono.strategies import AllReduce, Averaging, BlockMomentum, Sharding
from unisono.strategies.averaging import AveragingParticipant
from unisono.strategies.base import Replica
from unisono.strategies.engines import collective as collective_module
from unisono.strategies.engines.collective import Collective, Part, Parts
from unisono.strategies.engines.sync_rounds import Contribution, SyncParticipant
from unisono.testing import Promises, check_strategy
from unisono.testing.properties import (
    check_alone,
    check_contraction,
    check_mean,
    check_newcomer,
    check_repeats,
    check_schedules,
)

FEW = 30
MOMENTUM = Promises(plain=False, keeps_mean=False, follows=False)


def dynamic() -> Averaging:
    return Averaging(every=8, sharding=Sharding.DYNAMIC)


def static() -> Averaging:
    return Averaging(every=8, sharding=Sharding.STATIC)


def not_found_before(make: Callable[[], Any], **options: Any) -> None:
    """What is broken below passes as it is: the breaking is what is found."""
    check_strategy(make, schedulers=FEW, **options)


@dataclass(frozen=True, kw_only=True)
class Broken(Averaging):
    """Averaging with another participant."""

    kind: type[AveragingParticipant] = AveragingParticipant

    def participant(self, replica: Replica) -> AveragingParticipant:
        return self.kind(replica, self)


def broken(kind: type[AveragingParticipant], **options: Any) -> Callable[[], Broken]:
    return lambda: Broken(every=8, kind=kind, **options)


class Overwriting(AveragingParticipant):
    """(a) Takes the mean itself instead of adding the difference: steps made meanwhile are lost."""

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        self.agreed.assign(mean)
        self.replica.replace(self.agreed)


class OverwritingByDelta(AveragingParticipant):
    """(a) The same, hidden in a delta from a second snapshot."""

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        self.agreed.assign(mean)
        now = self.replica.snapshot().vector
        now.difference(mean, now)
        self.replica.add(now)


@pytest.mark.parametrize("kind", [Overwriting, OverwritingByDelta])
def test_overwriting_the_parameters_is_found(kind: type[AveragingParticipant]) -> None:
    make = broken(kind, sharding=Sharding.DYNAMIC)
    with pytest.raises(AssertionError):
        check_strategy(make, schedulers=0)


def snapshot_without_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_read(self: LearnerReplica) -> Callable[[], Vector]:
        vector: Vector = self._storage.new()
        finish = self._storage.read(vector)

        def rest() -> Vector:
            finish()
            return vector

        return rest

    monkeypatch.setattr(LearnerReplica, "_begin_read", begin_read)


def test_a_snapshot_without_pending_deltas_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """(b) Beside a slow learner, whose deltas wait for its next update."""
    snapshot_without_pending(monkeypatch)
    with pytest.raises(AssertionError, match="not parameters plus pending"):
        check_mean(dynamic)


def test_the_drift_of_such_snapshots_is_found_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """(b) Seen from outside: learners drift apart, while the mean is exact."""
    check_contraction(dynamic)
    snapshot_without_pending(monkeypatch)
    with pytest.raises(AssertionError, match=r"drift apart|do not come together"):
        check_contraction(dynamic)


def committed_when_leased(
    self: Pool, who: Address, want: int, learners: int, lend: Any = Pool.lease
) -> list[Range]:
    ranges: list[Range] = lend(self, who, want, learners)
    self.commit(who, ranges)
    return ranges


def test_committing_when_drawn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """(c) A death after that loses the lease, which nobody returns."""
    monkeypatch.setattr(Pool, "lease", committed_when_leased)
    with pytest.raises(AssertionError, match="replay with check_schedule"):
        check_schedules(dynamic, range(FEW))


def forgetful_sum(result: Vector, round_plan: list[tuple[float, Vector]], honest: Any) -> None:
    honest(result, [(1.0, vector) for _, vector in round_plan])


@pytest.mark.parametrize("make", [static, dynamic, AllReduce])
def test_a_mean_that_forgets_the_weights_is_found(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(d) Minibatches of unequal size make it visible, learners far apart make it large."""
    honest = collective_module._weighted_sum
    forgetful = partial(forgetful_sum, honest=honest)
    monkeypatch.setattr(collective_module, "_weighted_sum", forgetful)
    with pytest.raises(AssertionError, match="moved the mean"):
        check_mean(make)


class ByArrival(Collective):
    """(e) The owner of a slice sums its parts in the order in which they arrive."""

    def _sum_up(self, members: list[Address], own: Part, vector: Vector, *rest: Any) -> Parts:
        result, *_ = rest
        me = self._fabric.address
        arrived: list[tuple[float, Vector]] = [(float(own.candidate.examples), vector)]
        notes, messages = {me: own.note}, []
        while len(arrived) < len(members):
            message = self._any(own.tag)
            messages.append(message)
            assert message.vector is not None
            arrived.append((float(message.body.candidate.examples), message.vector))
            notes[message.sender] = message.body.note
        collective_module._weighted_sum(result, arrived)
        for message in messages:
            message.release()
        return Parts(notes)

    def _any(self, tag: tuple[int, int]) -> Message[Any]:
        while True:
            message = self._fabric.receive(collective_module.PORT)
            if message.body.tag == tag and isinstance(message.body, Part):
                return message
            self._early.setdefault(message.sender, []).append(message)


def test_summing_in_the_order_of_arrival_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """(e) The members agree with each other, but not with another schedule of the same run."""
    check_repeats(static)
    monkeypatch.setattr("unisono.strategies.engines.sync_rounds.Collective", ByArrival)
    with pytest.raises(AssertionError, match="other bits"):
        check_repeats(static)


class EachForItself(Collective):
    """(e) Everybody gets everything, and sums it in the order of arrival."""

    def _mean(self, members: list[Address], own: Part, vector: Vector, *rest: Any) -> Parts:
        result, *_ = rest
        me = self._fabric.address
        others = [m for m in members if m != me]
        for member in others:
            self._fabric.send(member, collective_module.PORT, own, vector)
        arrived, notes = [(float(own.candidate.examples), vector)], {me: own.note}
        for member in others:
            message = self._next(member, own.tag, Part)
            assert message.vector is not None
            arrived.append((float(message.body.candidate.examples), message.vector.copy()))
            notes[member] = message.body.note
            message.release()
        collective_module._weighted_sum(result, arrived)
        return Parts({m: notes[m] for m in members})


def test_members_that_sum_each_in_its_own_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """(e) The last bits differ from member to member."""
    monkeypatch.setattr("unisono.strategies.engines.sync_rounds.Collective", EachForItself)
    with pytest.raises(AssertionError, match="not the same bits"):
        check_repeats(static)


class TwiceApplied(AveragingParticipant):
    """(f) Applies a result twice."""

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        copy = Contribution(contribution.vector.copy(), contribution.work)
        super().conclude(mean, contribution, members)
        super().conclude(mean, copy, members)


def test_applying_a_result_twice_is_found_drawn() -> None:
    with pytest.raises(AssertionError):
        check_strategy(broken(TwiceApplied, sharding=Sharding.DYNAMIC), schedulers=FEW)


def test_applying_a_result_twice_in_one_learner_is_found_static() -> None:
    """(f) With a plain outer step a second time changes nothing; with momentum it does."""

    class OneTwice(TwiceApplied):
        def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
            if self.fabric.address.number == 0:
                super().conclude(mean, contribution, members)
            else:
                AveragingParticipant.conclude(self, mean, contribution, members)

    make = broken(OneTwice, outer=BlockMomentum(momentum=0.5))
    with pytest.raises(AssertionError):
        check_strategy(make, schedulers=FEW, promises=MOMENTUM)


class Lonely(AveragingParticipant):
    """A special case for one learner: no round at all."""

    def end_of_round(self, sync_round: int) -> None:
        if len(self._members) > 1:
            super().end_of_round(sync_round)
        else:
            self.client.tell(Commit({self.fabric.address: self.replica.take_work().note()}))


def test_a_special_case_for_one_learner_is_found() -> None:
    with pytest.raises(AssertionError, match="no round happened"):
        check_alone(broken(Lonely, sharding=Sharding.STATIC))


class Unwelcoming(AveragingParticipant):
    """Newcomers get the state of the rounds, and keep their own parameters."""

    def _receive_state(self, donor: Address) -> None:
        own = self.replica.export(optimizer=False).vectors["parameters"]
        super()._receive_state(donor)
        self.replica.replace(own)
        self._agreed = own


def test_newcomers_without_their_state_are_found() -> None:
    with pytest.raises(AssertionError):
        check_strategy(broken(Unwelcoming), schedulers=FEW)


def test_newcomers_with_the_uncommitted_steps_of_their_donor_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the donor has trained since the last sync round would come in twice."""
    monkeypatch.setattr(AveragingParticipant, "restore", AveragingParticipant.load_state)
    with pytest.raises(AssertionError, match="by the steps of"):
        check_newcomer(dynamic)


def test_losing_a_report_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync round that nobody tells of is never committed: the run cannot end."""
    monkeypatch.setattr(SyncParticipant, "_report", lambda self: None)
    with pytest.raises(AssertionError, match="DeadlockError"):
        check_schedules(static, range(2), faults=False)


def test_dealing_what_is_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead learner's work goes back before it is known whether a sync round contains it."""

    def hasty(self: Departed, may_contain: Any) -> list[Address]:
        free, self._witnesses = sorted(self._witnesses), {}
        return free

    monkeypatch.setattr(Departed, "freed", hasty)
    with pytest.raises(AssertionError, match="replay with check_schedule"):
        check_schedules(static, range(400))


@pytest.mark.parametrize("make", [static, dynamic, AllReduce])
def test_what_is_not_broken_passes(make: Callable[[], Any]) -> None:
    not_found_before(make)
