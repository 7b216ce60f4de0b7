"""What the coordinator knows, as a pure state machine.

``apply`` takes one operation and returns the messages that follow from it. It looks at no clock and
draws no random number, so that replaying the journal of operations leads to the same state.
"""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import assert_never

from unisono.coordinator.departed import Departed
from unisono.coordinator.directives import Abandon, AskedToLeave, CheckpointWritten, Failure
from unisono.coordinator.dynamic_sharding import DynamicSharding
from unisono.coordinator.job import Sharding
from unisono.coordinator.messages import (
    CONTROL,
    Admitted,
    Closed,
    Command,
    Commit,
    Enter,
    Failed,
    Idle,
    Join,
    Leave,
    Left,
    LossReason,
    Lost,
    Mismatch,
    Open,
    Opened,
    PartWritten,
    ReportMalformed,
    RequestAssignment,
    RequestLease,
    Retire,
    Return,
    RoundBroken,
    RoundCompleted,
    Skip,
    SnapshotTaken,
    StartWithoutMissing,
    StateReceived,
    Stop,
    Sync,
    Synced,
)
from unisono.coordinator.output import Output
from unisono.coordinator.pace import Pace
from unisono.coordinator.requests import Action, Requested
from unisono.coordinator.run_state import RunState
from unisono.coordinator.static_sharding import StaticSharding
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Member
from unisono.pool.pool import Pool
from unisono.pool.ranges import count


class State(RunState):
    """Membership, leases, assignments and sync rounds of one run."""

    def __init__(self, expected: int) -> None:
        super().__init__(expected)
        self._static = StaticSharding(self)
        self._dynamic = DynamicSharding(self)
        self._orderly = False
        self._leaving: dict[Address, Command] = {}
        self._newest_part: PartWritten | None = None
        """Of a checkpoint that is not complete."""
        self._departed = Departed()

    def apply(self, command: Command) -> list[Output]:
        """Applies an operation of a member or, without ``sequence``, of the service itself."""
        if command.sequence is not None:
            if not self.delivery.is_next(command):
                return self.delivery.repeat(command)
            if not isinstance(command.operation, Join) and command.who not in self.members:
                return []  # It left, or was lost, while this was in transit.
            self.delivery.take(command)
        self._handle(command)
        self._advance()
        return self.delivery.out()

    def objection(self, command: Command) -> str:
        """Why an operation makes no sense at any time; empty if it may.

        One that was applied before and is sent again may be out of date.
        """
        who, operation = command.who, command.operation
        if command.sequence is None or command.sequence <= self.acknowledged(who):
            return ""
        if isinstance(operation, RoundBroken):
            participants = self.sync_rounds.participants(operation.round) or ()
            return "" if who in participants else f"it has no part in sync round {operation.round}"
        if isinstance(operation, RequestAssignment) and (operation.number or 0) < 0:
            return f"there is no assignment {operation.number}"
        return ""

    @property
    def orderly(self) -> bool:
        """Whether the last member to go left, and was not lost."""
        return self._orderly or self.pool.over or self.failure is not None

    @property
    def state_holders(self) -> Collection[Address]:
        """The living learners that have the run's parameters."""
        return self._dynamic.state_holders if self.is_dynamic else self._static.state_holders

    @property
    def orphaned(self) -> bool:
        """Whether no living member has the run's parameters or may begin, or none is a learner."""
        if not self.members or not self.started or self.pool.over:
            return False
        if not self.learners:
            return True
        sharding = self._dynamic if self.is_dynamic else self._static
        if sharding.has_state_holders:
            return False
        return self.first_donor(self.members) is None

    def may_join(self, who: Address) -> bool:
        """Whether this incarnation is new, or a member already."""
        return not self.delivery.knows(who) or who in self.members

    def acknowledged(self, who: Address) -> int:
        """The number of the last operation of a member that was applied."""
        return self.delivery.last(who)

    def directives(self) -> list[Output]:
        """What a restarted coordinator must tell the living again."""
        self._dynamic.repeat_directives()
        for supply in self.sync_rounds.supplies:
            self.delivery.send(supply)
        self.unasked = bool(self.removed)
        self._ask_to_leave()
        return self.delivery.out()

    def _handle(self, command: Command) -> None:
        who = command.who
        match command.operation:
            # The pool.
            case RequestLease() as request:
                self._dynamic.request(request, command)
            case RequestAssignment() as request:
                self._static.request(request, command)
            case Commit(notes):
                for owner, ranges in notes.items():
                    self.pool.commit(owner, ranges)
                self.checkpoints.add(who, notes.get(who, ()))
            case Skip(ranges):
                self.pool.skip(who, ranges)
            case Return(ranges):
                self.pool.give_back(who, ranges, suspect=False)
                self.pool.counts.dropped += count(ranges)
            case Idle():
                self._dynamic.idle(who)
            case Stop():
                self.pool.stop()
            # Sync rounds and checkpoints.
            case RoundCompleted(number, notes, timing):
                self.sync_rounds.complete(who, number, notes)
                self.pace.measured(who, timing)
            case RoundBroken(number):
                self.sync_rounds.stand(who, number, command)
            case SnapshotTaken() as taken:
                self._dynamic.snapshot_taken(taken, command)
            case PartWritten() as part:
                self.checkpoints.part(who, part.checkpoint, part.error)
                self._newest_part = part
                self._finish_checkpoint()
            # Members.
            case Join() as join:
                self._join(join, command)
            case Open() as opened:
                self._open(opened, command)
            case Enter() as enter:
                self._dynamic.enter(enter, command)
            case StateReceived() as received:
                self._dynamic.state_received(received, command)
            case Sync():
                self.delivery.answer(command, Synced())
            case Leave():
                self._leaving[who] = command
            case Retire():
                self._orderly = False
                self.delivery.answer(command, Left())
                self._remove(who)
            case Lost(reason):
                self._lose(who, reason)
            case Closed(gone):
                self._departed.close(gone, who)
            case Failed(cause, text):
                self._fail(Failure(who, cause, text))
            case ReportMalformed():
                pass  # The service declares the sender dead.
            # The service.
            case StartWithoutMissing():
                self.started = True
                self.expected = len(self.members)
            case Requested() as asked:
                self._request(asked)
            case other:
                assert_never(other)

    # Members.

    def _join(self, join: Join, command: Command) -> None:
        member = Member(command.who, join.endpoint)
        self.view = self.view.after(self.view.version + 1, (member,), ())
        self._dynamic.join()
        self.joined += 1
        self.endpoints[command.who] = join.endpoint
        self.metrics = self.metrics or join.metrics
        self.delivery.answer(command, Admitted())
        if self.failure is not None:
            self.tell(command.who, CONTROL.name, Abandon(self.failure))
        self.unasked = self.unasked or command.who.number in self.removed

    def _open(self, opened: Open, command: Command) -> None:
        job = opened.job
        is_new = self.job is None
        if self.job is None:
            self.job = job
            overlapped = job.sharding is Sharding.DYNAMIC
            self.pace = Pace(job.pace, job.adaptive_pace, overlapped)
            self.pool = Pool(job.total, opened.committed)
            self.sync_rounds.start(opened.round)
            self.first_round = self.checkpoints.number = opened.round
        if job != self.job:
            reason = f"the learners differ in {self.job.differences(job)}"
            self.delivery.answer(command, Mismatch(reason))
            return
        self.opened[command.who] = opened.digest
        if opened.round == self.first_round > 0 and self.is_fresh(command.who):
            self.restored.add(command.who)
        self.delivery.answer(command, Opened(is_new))

    def _lose(self, who: Address, reason: LossReason) -> None:
        if who not in self.members:
            return
        self.lost.append(who)
        if reason is LossReason.DIVERGED:
            self.diverged.add(who)
        self._orderly = False
        if who in self.pool.held:
            self.trained_before.add(who._replace(incarnation=0))
        self._remove(who)

    def _fail(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure = failure
            for learner in self.members:
                self.tell(learner, CONTROL.name, Abandon(failure))

    def _remove(self, who: Address) -> None:
        self.view = self.view.after(self.view.version + 1, (), (who,))
        self._leaving.pop(who, None)
        self._static.remove(who)
        self._dynamic.remove(who)
        self.sync_rounds.remove(who)
        self._finish_checkpoint()
        may_live_on = self.commits_by_word and not self.pool.over
        self._departed.add(who, self._dynamic.witnesses if may_live_on else ())

    # Requests of people.

    def _request(self, asked: Requested) -> None:
        self.requests = asked.number
        if self.pool.over:
            return  # All leave now, and the leader has been chosen.
        if asked.action is Action.REMOVE and asked.learner is not None:
            self.removed.add(asked.learner)
            self.unasked = True
        if asked.action in (Action.CHECKPOINT, Action.STOP):
            self.checkpoints.asked = self.job is not None and self.job.checkpoint_every > 0
            self.stopping = self.stopping or asked.action is Action.STOP

    def _ask_to_leave(self) -> None:
        """Asks removed learners to leave as soon as one that stays has the run's parameters."""
        if not self.unasked or all(a.number in self.removed for a in self.state_holders):
            return
        self.unasked = False
        for learner in self.members:
            if learner.number in self.removed:
                self.tell(learner, CONTROL.name, AskedToLeave())

    # What follows from every operation.

    def _finish_checkpoint(self) -> None:
        """Completes a checkpoint once every living learner has written its part."""
        part = self._newest_part
        committed = part and self.checkpoints.whole(part.checkpoint, self.members)
        if part is None or committed is None:
            return
        self._newest_part = None
        ranges = tuple(committed or self.pool.committed)
        error = self.checkpoints.take_error(part.checkpoint)
        body = CheckpointWritten(part.folder, part.keep, ranges, part.checkpoint + 1, error)
        self.tell(COORDINATOR, "checkpoint", body)

    def _advance(self) -> None:
        if self.failure is not None:
            return
        self._commit_agreed()
        for command, answer in self.sync_rounds.regroup(self.members, self.delivery.send):
            self.delivery.answer(command, answer)
        if self._departed:
            for who in self._departed.freed(self.sync_rounds.may_contain):
                self.pool.give_all_back(who)
        if len(self.members) >= self.expected:
            self.started = True
        if self.job is not None and self.started:
            if self.is_dynamic:
                self._dynamic.advance(self._departed.held)
            else:
                self._static.advance()
            self._ask_to_leave()
        self._let_leave()

    def _commit_agreed(self) -> None:
        if self.sync_rounds.is_idle:
            return
        before = self.sync_rounds.resolved
        for notes in self.sync_rounds.resolve(self.members):
            for owner, ranges in notes.items():
                self.pool.commit(owner, ranges)
        self.checkpoints.fix(before, self.sync_rounds.resolved, self.pool.committed)

    def _let_leave(self) -> None:
        """Dynamic sharding: after all sync rounds that may contain its work; static: at once."""
        if not self._leaving:
            return
        static = self.job is not None and not self.is_dynamic
        for who, command in list(self._leaving.items()):
            if static or self.pool.over or not self.sync_rounds.may_contain(who):
                is_last = self.learners == (who,) and self.leader is None
                self.delivery.answer(command, Left(self.leader == who or is_last))
                self._orderly = True
                self._remove(who)
