"""What the coordinator knows, as a pure state machine.

``apply`` takes one operation and returns the messages that follow from it. It looks at no clock and
draws no random number, so that replaying the journal of operations leads to the same state.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import singledispatchmethod

from unisono.coordinator.departed import Departed
from unisono.coordinator.directives import (
    Abandon,
    AskedToLeave,
    CheckpointWritten,
    Failure,
)
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
    Operation,
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
        """Of a checkpoint that is not whole."""
        self._departed = Departed()

    def apply(self, command: Command) -> list[Output]:
        """Takes one operation of a member (or, without ``sequence``, of the service itself)."""
        if command.sequence is not None:
            if not self.delivery.is_next(command):
                return self.delivery.repeat(command)
            if not isinstance(command.operation, Join) and command.who not in self.learners:
                return []  # It has left, or was lost, while this was on its way.
            self.delivery.take(command)
        _handler(type(command.operation))(self, command.operation, command)
        self._advance()
        return self.delivery.out()

    def objection(self, command: Command) -> str:
        """Why no member can mean an operation, whatever happened; empty: it can.

        One that was taken before, and comes again, may be out of date.
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

    @singledispatchmethod
    def handle(self, operation: Operation, command: Command) -> None:
        raise NotImplementedError(f"no handler for {operation!r}")

    @property
    def orderly(self) -> bool:
        """Whether the last one who went has left, and was not lost."""
        return self._orderly or self.pool.over or self.failure is not None

    @property
    def state_holders(self) -> Collection[Address]:
        """The living learners that have the run's parameters."""
        return self._dynamic.state_holders if self.is_dynamic else self._static.state_holders

    @property
    def orphaned(self) -> bool:
        """Whether there are learners, and none of them has the run's parameters or may begin."""
        if not self.learners or not self.started or self.pool.over:
            return False
        sharding = self._dynamic if self.is_dynamic else self._static
        if sharding.has_state_holders:
            return False
        return self.first_donor(self.learners) is None

    def may_join(self, who: Address) -> bool:
        """Whether this incarnation has not been here before."""
        return not self.delivery.knows(who) or who in self.learners

    def acknowledged(self, who: Address) -> int:
        """The last operation of a member that is in the state."""
        return self.delivery.last(who)

    def directives(self) -> list[Output]:
        """What the living must be told again when the coordinator comes back from its journal."""
        self._dynamic.repeat_directives()
        for supply in self.sync_rounds.supplies:
            self.delivery.send(supply)
        self.unasked = bool(self.removed)
        self._ask_to_leave()
        return self.delivery.out()

    # Members.

    @handle.register
    def _on_join(self, operation: Join, command: Command) -> None:
        member = Member(command.who, operation.endpoint)
        self.view = self.view.after(self.view.version + 1, (member,), ())
        self.joined += 1
        self.endpoints[command.who] = operation.endpoint
        self.metrics = self.metrics or operation.metrics
        self.delivery.answer(command, Admitted())
        if self.failure is not None:
            self.tell(command.who, CONTROL.name, Abandon(self.failure))
        self.unasked = self.unasked or command.who.number in self.removed

    @handle.register
    def _on_open(self, operation: Open, command: Command) -> None:
        job = operation.job
        is_new = self.job is None
        if self.job is None:
            self.job = job
            overlapped = job.sharding is Sharding.DYNAMIC
            self.pace = Pace(job.pace, job.adaptive_pace, overlapped)
            self.pool = Pool(job.total, operation.committed)
            self.sync_rounds.start(operation.round)
            self.first_round = self.checkpoints.number = operation.round
        if job != self.job:
            reason = f"the learners differ in {self.job.differences(job)}"
            self.delivery.answer(command, Mismatch(reason))
            return
        self.opened[command.who] = operation.digest
        if operation.round == self.first_round > 0 and self.is_fresh(command.who):
            self.restored.add(command.who)
        self.delivery.answer(command, Opened(is_new))

    @handle.register
    def _on_start(self, operation: StartWithoutMissing, command: Command) -> None:
        self.started = True
        self.expected = len(self.learners)

    @handle.register
    def _on_lost(self, operation: Lost, command: Command) -> None:
        who = command.who
        if who not in self.learners:
            return
        self.lost.append(who)
        if operation.reason is LossReason.DIVERGED:
            self.diverged.add(who)
        self._orderly = False
        if who in self.pool.held:
            self.trained_before.add(who._replace(incarnation=0))
        self._remove(who)

    @handle.register
    def _on_retire(self, operation: Retire, command: Command) -> None:
        self._orderly = False
        self.delivery.answer(command, Left())
        self._remove(command.who)

    @handle.register
    def _on_leave(self, operation: Leave, command: Command) -> None:
        self._leaving[command.who] = command

    @handle.register
    def _on_sync(self, operation: Sync, command: Command) -> None:
        self.delivery.answer(command, Synced())

    @handle.register
    def _on_failed(self, operation: Failed, command: Command) -> None:
        if self.failure is None:
            self.failure = Failure(command.who, operation.cause, operation.text)
            for learner in self.learners:
                self.tell(learner, CONTROL.name, Abandon(self.failure))

    @handle.register
    def _on_report_malformed(self, operation: ReportMalformed, command: Command) -> None:
        """The service declares the one who sent it dead."""

    @handle.register
    def _on_closed(self, operation: Closed, command: Command) -> None:
        self._departed.close(operation.gone, command.who)

    @handle.register
    def _on_requested(self, operation: Requested, command: Command) -> None:
        self.requests = operation.number
        if self.pool.over:
            return  # all leave now, and one of them has been told to see to the model
        if operation.action is Action.REMOVE and operation.learner is not None:
            self.removed.add(operation.learner)
            self.unasked = True
        if operation.action in (Action.CHECKPOINT, Action.STOP):
            self.checkpoints.asked = self.job is not None and self.job.checkpoint_every > 0
            self.stopping = self.stopping or operation.action is Action.STOP

    def _ask_to_leave(self) -> None:
        """Whoever is removed leaves once one that stays has the run's parameters."""
        if not self.unasked or all(a.number in self.removed for a in self.state_holders):
            return
        self.unasked = False
        for learner in self.learners:
            if learner.number in self.removed:
                self.tell(learner, CONTROL.name, AskedToLeave())

    def _remove(self, who: Address) -> None:
        self.view = self.view.after(self.view.version + 1, (), (who,))
        self._leaving.pop(who, None)
        self._static.remove(who)
        self._dynamic.remove(who)
        self.sync_rounds.remove(who)
        self._finish_checkpoint()
        may_live_on = self.commits_by_word and not self.pool.over
        self._departed.add(who, self._dynamic.witnesses if may_live_on else ())

    # The pool.

    @handle.register
    def _on_request_assignment(self, operation: RequestAssignment, command: Command) -> None:
        self._static.request(operation, command)

    @handle.register
    def _on_request_lease(self, operation: RequestLease, command: Command) -> None:
        self._dynamic.request(operation, command)

    @handle.register
    def _on_idle(self, operation: Idle, command: Command) -> None:
        self._dynamic.idle(command.who)

    @handle.register
    def _on_commit(self, operation: Commit, command: Command) -> None:
        for owner, ranges in operation.notes.items():
            self.pool.commit(owner, ranges)
            self.checkpoints.add(owner, ranges)

    @handle.register
    def _on_stop(self, operation: Stop, command: Command) -> None:
        self.pool.stop()

    @handle.register
    def _on_skip(self, operation: Skip, command: Command) -> None:
        self.pool.skip(command.who, operation.ranges)

    @handle.register
    def _on_return(self, operation: Return, command: Command) -> None:
        self.pool.give_back(command.who, operation.ranges, suspect=False)
        self.pool.counts.dropped += count(operation.ranges)

    # Sync rounds, newcomers and checkpoints.

    @handle.register
    def _on_round_completed(self, operation: RoundCompleted, command: Command) -> None:
        self.sync_rounds.complete(command.who, operation.round, operation.notes)
        self.pace.measured(command.who, operation.timing)

    @handle.register
    def _on_round_broken(self, operation: RoundBroken, command: Command) -> None:
        self.sync_rounds.stand(command.who, operation.round, command)

    @handle.register
    def _on_enter(self, operation: Enter, command: Command) -> None:
        self._dynamic.enter(operation, command)

    @handle.register
    def _on_state_received(self, operation: StateReceived, command: Command) -> None:
        self._dynamic.state_received(operation, command)

    @handle.register
    def _on_snapshot_taken(self, operation: SnapshotTaken, command: Command) -> None:
        self._dynamic.snapshot_taken(operation, command)

    @handle.register
    def _on_part_written(self, operation: PartWritten, command: Command) -> None:
        self.checkpoints.part(command.who, operation.checkpoint, operation.error)
        self._newest_part = operation
        self._finish_checkpoint()

    def _finish_checkpoint(self) -> None:
        """A checkpoint is whole with its last part, or when who lacks it is gone."""
        part = self._newest_part
        committed = part and self.checkpoints.whole(part.checkpoint, self.learners)
        if part is None or committed is None:
            return
        self._newest_part = None
        ranges = tuple(committed or self.pool.committed)
        error = self.checkpoints.take_error(part.checkpoint)
        body = CheckpointWritten(part.folder, part.keep, ranges, part.checkpoint + 1, error)
        self.tell(COORDINATOR, "checkpoint", body)

    # What follows.

    def _advance(self) -> None:
        if self.failure is not None:
            return
        self._commit_agreed()
        for command, answer in self.sync_rounds.regroup(self.learners, self.delivery.send):
            self.delivery.answer(command, answer)
        if self._departed:
            for who in self._departed.freed(self.sync_rounds.may_contain):
                self.pool.give_all_back(who)
        if len(self.learners) >= self.expected:
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
        for notes in self.sync_rounds.resolve(self.learners):
            for owner, ranges in notes.items():
                self.pool.commit(owner, ranges)
        self.checkpoints.fix(before, self.sync_rounds.resolved, self.pool.committed)

    def _let_leave(self) -> None:
        """Dynamic sharding: after every sync round that counts the leaver; static: at once."""
        if not self._leaving:
            return
        static = self.job is not None and not self.is_dynamic
        for who, command in list(self._leaving.items()):
            if static or self.pool.over or not self.sync_rounds.may_contain(who):
                is_last = self.learners == (who,) and self.leader is None
                self.delivery.answer(command, Left(self.leader == who or is_last))
                self._orderly = True
                self._remove(who)


_handler = State.__dict__["handle"].dispatcher.dispatch
"""The method for a type of operation; ``State.handle`` would be made anew at each call."""
