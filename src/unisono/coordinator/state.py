"""What the coordinator knows, as a pure state machine.

``apply`` takes one operation and returns the messages that follow from it. It looks at no clock and
draws no random number, so that replaying the journal of operations leads to the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod

from unisono.coordinator.checkpoints import Checkpoints
from unisono.coordinator.delivery import Delivery
from unisono.coordinator.departed import Departed
from unisono.coordinator.job import Job, Sharding
from unisono.coordinator.messages import (
    CONTROL,
    Abandon,
    Admitted,
    Answer,
    Assigned,
    Body,
    CheckpointWritten,
    Closed,
    CloseRound,
    Command,
    Commit,
    Complete,
    Continue,
    Directive,
    Enter,
    Entered,
    EntryGranted,
    Failed,
    Failure,
    Idle,
    Join,
    Leased,
    Leave,
    Left,
    Lost,
    Mismatch,
    Open,
    Opened,
    Operation,
    Outdated,
    PartWritten,
    ReportMalformed,
    RequestAssignment,
    RequestLease,
    Retire,
    Return,
    RoundBroken,
    RoundCompleted,
    SendState,
    Skip,
    SnapshotTaken,
    StartWithoutMissing,
    StateReceived,
    Stop,
    Sync,
    Synced,
    TakeSnapshot,
    ViewChanged,
    Wait,
)
from unisono.coordinator.output import STRATEGY, Output
from unisono.coordinator.pace import LEAST_ROUNDS, LEAST_SHARE, Pace
from unisono.coordinator.sync_rounds import SyncRounds
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Member, View
from unisono.pool.pool import Assignment, Pool
from unisono.pool.ranges import count

_BLOCK = 32
"""Minibatches a learner in an assignment, where rounds are short: fewer questions."""


class State:
    """Membership, leases, assignments and sync rounds of one run."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.view = View()
        self.job: Job | None = None
        self.pool = Pool(0)
        self.pace = Pace(((0, LEAST_SHARE),))
        self.sync_rounds = SyncRounds()
        self.lost: list[Address] = []
        self.joined = 0
        self.failure: Failure | None = None
        self._orderly = False
        self.started = False
        self._drawing = False
        self._first_round = 0
        self._restored: set[Address] = set()
        """Who has come with the state of the checkpoint from which the run goes on."""
        self._opened: set[Address] = set()
        self._assignments: list[Assignment] = []
        self._welcomed: set[Address] = set()
        self._trained_before: set[Address] = set()
        self._entering: dict[Address, Command] = {}
        self._asked_welcome: dict[Address, Address] = {}
        self._leaving: dict[Address, Command] = {}
        self._want_assignment: dict[Address, tuple[RequestAssignment, Command]] = {}
        self._want_lease: dict[Address, tuple[RequestLease, Command]] = {}
        self._idle: set[Address] = set()
        self._departed = Departed()
        self._leader: Address | None = None
        self._dynamic = 0
        self._checkpoints = Checkpoints()
        self._delivery = Delivery()

    @property
    def learners(self) -> list[Address]:
        """The living learners, in the members' order."""
        return self.view.addresses()

    def apply(self, command: Command) -> list[Output]:
        """Takes one operation of a member (or, without ``sequence``, of the service itself)."""
        if command.sequence is not None:
            if not self._delivery.is_next(command):
                return self._delivery.repeat(command)
            if not isinstance(command.operation, Join) and command.who not in self.learners:
                return []  # It has left, or was lost, while this was on its way.
            self._delivery.take(command)
        self.handle(command.operation, command)
        self._advance()
        return self._delivery.out()

    @singledispatchmethod
    def handle(self, operation: Operation, command: Command) -> None:
        """What an operation does; one method for each type."""
        raise NotImplementedError(f"no handler for {operation!r}")

    @property
    def orderly(self) -> bool:
        """Whether the last one who went has left, and was not lost."""
        return self._orderly or self.pool.over or self.failure is not None

    def may_join(self, who: Address) -> bool:
        """Whether this incarnation has not been here before."""
        return not self._delivery.knows(who) or who in self.learners

    def acknowledged(self, who: Address) -> int:
        """The last operation of a member that is in the state."""
        return self._delivery.last(who)

    def directives(self) -> list[Output]:
        """What the living must be told again when the coordinator comes back from its journal."""
        self._tell_view()
        for newcomer, donor in self._asked_welcome.items():
            self._direct(donor, SendState(newcomer))
        if self._is_dynamic:
            self._tell_close()
            self._tell_cut()
            self._tell_after_cut(self._checkpoints.keeping)
        for supply in self.sync_rounds.supplies:
            self._delivery.send(supply)
        return self._delivery.out()

    # Members.

    @handle.register
    def _on_join(self, operation: Join, command: Command) -> None:
        members = (*self.view.members, Member(command.who, operation.endpoint))
        self._set_members(tuple(sorted(members)))
        self.joined += 1
        self._delivery.answer(command, Admitted())
        if self.failure is not None:
            self._tell(command.who, CONTROL.name, Abandon(self.failure))

    @handle.register
    def _on_open(self, operation: Open, command: Command) -> None:
        job = operation.job
        is_new = self.job is None
        if self.job is None:
            self.job = job
            self.pace = Pace(job.pace, job.adaptive_pace)
            self.pool = Pool(job.total, operation.committed)
            self.sync_rounds.start(operation.round)
            self._first_round = self._checkpoints.number = operation.round
        if job != self.job:
            reason = f"the learners differ in {self.job.differences(job)}"
            self._delivery.answer(command, Mismatch(reason))
            return
        self._opened.add(command.who)
        if operation.round == self._first_round > 0:
            self._restored.add(command.who)
        self._delivery.answer(command, Opened(is_new))

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
        self._orderly = False
        if who in self.pool.held:
            self._trained_before.add(who._replace(incarnation=0))
        self._remove(who)

    @handle.register
    def _on_retire(self, operation: Retire, command: Command) -> None:
        self._orderly = False
        self._delivery.answer(command, Left())
        self._remove(command.who)

    @handle.register
    def _on_leave(self, operation: Leave, command: Command) -> None:
        self._leaving[command.who] = command

    @handle.register
    def _on_sync(self, operation: Sync, command: Command) -> None:
        self._delivery.answer(command, Synced())

    @handle.register
    def _on_failed(self, operation: Failed, command: Command) -> None:
        if self.failure is None:
            self.failure = Failure(command.who, operation.cause, operation.text)
            for learner in self.learners:
                self._tell(learner, CONTROL.name, Abandon(self.failure))

    @handle.register
    def _on_report_malformed(self, operation: ReportMalformed, command: Command) -> None:
        """The service declares the one who sent it dead."""

    def _remove(self, who: Address) -> None:
        self._set_members(tuple(m for m in self.view.members if m.address != who))
        self._welcomed.discard(who)
        self._entering.pop(who, None)
        self._idle.discard(who)
        self._want_assignment.pop(who, None)
        self._want_lease.pop(who, None)
        self._leaving.pop(who, None)
        self._asked_welcome = {
            new: old for new, old in self._asked_welcome.items() if who not in (new, old)
        }
        self.sync_rounds.remove(who)
        if self._checkpoints.cutting:
            self._checkpoints.give_up()
            self._tell_after_cut(None)
        witnesses = [a for a in self.learners if a in self._welcomed]
        self._departed.add(who, [*witnesses, *self._asked_welcome] if self._by_word else [])

    @property
    def _is_dynamic(self) -> bool:
        return self.job is not None and self.job.sharding is Sharding.DYNAMIC

    @property
    def _by_word(self) -> bool:
        """Dynamic sharding without sync rounds: others may have the work of the dead."""
        return self._is_dynamic and self.job is not None and not self.job.commits_by_round

    @handle.register
    def _on_closed(self, operation: Closed, command: Command) -> None:
        self._departed.close(operation.gone, command.who)

    def _set_members(self, members: tuple[Member, ...]) -> None:
        self.view = View(self.view.version + 1, members)
        self._tell_view()

    def _tell_view(self) -> None:
        for learner in self.learners:
            self._tell(learner, CONTROL.name, ViewChanged(self.view))

    # The pool.

    @handle.register
    def _on_request_assignment(self, operation: RequestAssignment, command: Command) -> None:
        self._want_assignment[command.who] = operation, command

    @handle.register
    def _on_request_lease(self, operation: RequestLease, command: Command) -> None:
        self._want_lease[command.who] = operation, command

    @handle.register
    def _on_idle(self, operation: Idle, command: Command) -> None:
        self._idle.add(command.who)

    @handle.register
    def _on_commit(self, operation: Commit, command: Command) -> None:
        for owner, ranges in operation.notes.items():
            self.pool.commit(owner, ranges)
            self._checkpoints.add(owner, ranges)

    @handle.register
    def _on_snapshot_taken(self, operation: SnapshotTaken, command: Command) -> None:
        self._checkpoints.cut(command.who, operation.checkpoint, operation.ranges)
        self._tell_after_cut(self._checkpoints.keeping)

    def _tell_after_cut(self, keep: int | None) -> None:
        """All have cut, or it was given up: whoever holds back its work may go on."""
        if not self._checkpoints.cutting:
            for member in sorted(self._welcomed):
                self._direct(member, Continue(keep))

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

    # Sync rounds.

    @handle.register
    def _on_round_completed(self, operation: RoundCompleted, command: Command) -> None:
        self.sync_rounds.complete(command.who, operation.round, operation.notes)
        self.pace.measured(command.who, operation.timing)

    @handle.register
    def _on_round_broken(self, operation: RoundBroken, command: Command) -> None:
        self.sync_rounds.stand(command.who, operation.round, command)

    @handle.register
    def _on_enter(self, operation: Enter, command: Command) -> None:
        self._asked_welcome.pop(command.who, None)
        self._entering[command.who] = command

    @handle.register
    def _on_state_received(self, operation: StateReceived, command: Command) -> None:
        """If its donor died, the others may have agreed without it since: then once more."""
        self._asked_welcome.pop(command.who, None)
        current = operation.rounds == self.sync_rounds.resolved and not self.sync_rounds.open
        current = current or self._by_word
        if current:
            self._let_in(command.who)
        self._delivery.answer(command, Entered() if current else Outdated())

    def _let_in(self, who: Address) -> None:
        """Dynamic sharding: the learner has the run's parameters."""
        self._welcomed.add(who)
        self.sync_rounds.enter(who)

    @property
    def state_holders(self) -> list[Address]:
        """The living learners that have the run's parameters.

        Static sharding: the members of the last assignment; its newcomers once they have completed
        a round, or if nobody else is left.
        """
        if self._is_dynamic:
            return [a for a in self.learners if a in self._welcomed]
        if not self._assignments:
            return []
        assignment = self._assignments[-1]
        members = [a for a in self.learners if a in assignment.members]
        sure = [
            a
            for a in members
            if a not in assignment.newcomers or self.sync_rounds.has_completed(a, assignment.first)
        ]
        return sure or members

    def _first_donor(self, candidates: Sequence[Address]) -> Address | None:
        """Who may begin with its own parameters when nobody living has the run's.

        Only before anything is committed: later, what is committed would be lost unseen. And only a
        learner that has not trained in an earlier life: what it trained then was returned, and
        would come in twice.
        """
        if self.pool.counts.committed:
            return None
        fresh = [a for a in self.learners if a._replace(incarnation=0) not in self._trained_before]
        first = min(fresh, default=None)
        return first if first in candidates else None

    @property
    def orphaned(self) -> bool:
        """Whether there are learners, and none of them has the run's parameters or may begin."""
        if not self.learners or not self.started or self.pool.over or self.state_holders:
            return False
        return self._first_donor(self.learners) is None

    # What follows.

    def _advance(self) -> None:
        if self.failure is not None:
            return
        self._commit_agreed()
        self._regroup()
        for who in self._departed.freed(self.sync_rounds.may_contain):
            self.pool.give_all_back(who)
        if len(self.learners) >= self.expected:
            self.started = True
        if self.job is not None and self.started:
            if self._is_dynamic:
                self._welcome()
                self._draw()
            else:
                self._assign()
        self._let_leave()

    def _commit_agreed(self) -> None:
        before = self.sync_rounds.resolved
        for notes in self.sync_rounds.resolve(self.learners):
            for owner, ranges in notes.items():
                self.pool.commit(owner, ranges)
        self._checkpoints.fix(before, self.sync_rounds.resolved, self.pool.committed)

    @handle.register
    def _on_part_written(self, operation: PartWritten, command: Command) -> None:
        """The last part of a checkpoint makes it whole."""
        number, error = operation.checkpoint, operation.error
        committed = self._checkpoints.part(command.who, number, self.learners, error)
        if committed is not None:
            ranges = tuple(committed or self.pool.committed)
            error = self._checkpoints.take_error(number)
            body = CheckpointWritten(operation.folder, operation.keep, ranges, number + 1, error)
            self._tell(COORDINATOR, "checkpoint", body)

    def _regroup(self) -> None:
        for command, answer in self.sync_rounds.regroup(self.learners, self._delivery.send):
            self._delivery.answer(command, answer)

    def _let_leave(self) -> None:
        """Dynamic sharding: after every sync round that counts the leaver; static: at once."""
        static = self.job is not None and not self._is_dynamic
        for who, command in list(self._leaving.items()):
            if static or self.pool.over or not self.sync_rounds.may_contain(who):
                last = self.learners == [who] and self._leader is None
                self._delivery.answer(command, Left(last))
                self._orderly = True
                self._remove(who)

    def _assign(self) -> None:
        assert self.job is not None
        goes_on = self._first_round > 0 and not self._assignments
        if goes_on and any(a not in self._opened for a in self.learners):
            return  # who has joined says next whether it has the state of the run already
        for who, (request, command) in sorted(self._want_assignment.items(), key=_address):
            number = request.number
            if number is None:
                number = next(
                    (d.number for d in self._assignments if who in d.members),
                    len(self._assignments),
                )
            if number == len(self._assignments) and self.pool.free:
                self._make_assignment()
            answer: Answer
            if number < len(self._assignments) and who in self._assignments[number].members:
                answer = Assigned(self._assignments[number])
            elif self.pool.over:
                answer = self._over()
            elif not request.patient:
                answer = Wait()
            else:
                continue
            del self._want_assignment[who]
            self._delivery.answer(command, answer)

    def _over(self) -> Complete:
        """Everything is committed; the first who has the model is to see to it."""
        if self._leader is None:
            members = set(self._assignments[-1].members) if self._assignments else self._welcomed
            if self.pool.counts.leased == 0:
                # Everything was committed before: all have the model from their checkpoint.
                members = set(self.learners)
            self._leader = next((a for a in self.learners if a in members), None)
        return Complete(self._leader, self.pool.stopped)

    def _make_assignment(self) -> None:
        assert self.job is not None
        before = set(self._assignments[-1].members) if self._assignments else self._restored
        newcomers = [a for a in self.learners if a not in before]
        old = [a for a in self.learners if a in before]
        donor = old[0] if old else self._first_donor(newcomers)
        if donor is None:
            return
        first = (
            self._assignments[-1].first + self._assignments[-1].rounds
            if self._assignments
            else None
        )
        first = self.sync_rounds.resolved if first is None else first
        share = self._share(first)
        assignment = self.pool.assign(
            len(self._assignments),
            first,
            self.learners,
            share,
            self._rounds(first, share),
            [a for a in newcomers if a != donor],
            donor,
        )
        self._assignments.append(assignment)
        if self.job.commits_by_round:
            self.sync_rounds.expect(
                assignment.first, assignment.first + assignment.rounds, list(assignment.members)
            )

    def _share(self, round_: int) -> int:
        """Minibatches a learner from a round on."""
        assert self.job is not None
        self.pace.most = max(1, self.job.total // (len(self.learners) * LEAST_ROUNDS))
        return self.pace.at(round_, self.learners)

    def _rounds(self, first: int, share: int) -> int:
        """Rounds in an assignment: not beyond a round at which a scheduled pace changes."""
        assert self.job is not None
        block = _BLOCK // share if self.job.adaptive_pace else 0
        rounds = max(self.job.rounds, block)
        later = [round_ for round_, _ in self.pace.schedule if round_ > first]
        return min([rounds, *(round_ - first for round_ in later)])

    def _welcome(self) -> None:
        """Dynamic sharding: a newcomer gets a living learner's state, between two sync rounds."""
        if self.sync_rounds.open:
            return
        for who, command in sorted(self._entering.items(), key=_address):
            donor = min(self._welcomed, default=None)
            if self.pool.over:
                del self._entering[who]
                self._delivery.answer(command, Complete())
                continue
            if who in self._restored and not self.pool.counts.committed:
                donor = None  # It comes with its own part of the run's state.
            elif donor is None and who != self._first_donor([who]):
                continue
            del self._entering[who]
            self._delivery.answer(command, EntryGranted(donor))
            if donor is None:
                self._let_in(who)
            else:
                self._asked_welcome[who] = donor
                self._direct(donor, SendState(who))

    def _draw(self) -> None:
        assert self.job is not None
        missing = any(a not in self._welcomed for a in self.learners)
        if self._asked_welcome or (missing and not self._drawing):
            return
        self._drawing = True
        self._grant_leases()
        if not self.job.commits_by_round:
            if not self._checkpoints.cutting and self._checkpoint_due():
                self._checkpoints.order(sorted(self._welcomed), self.pool.committed)
                self._tell_cut()
            return
        share = self.pace.share
        spent = self._dynamic >= share * len(self._welcomed)
        dry = bool(self._welcomed) and all(who in self._idle for who in self._welcomed)
        if (spent or (dry and not self.pool.over)) and not self.sync_rounds.open:
            self._dynamic = 0
            self._open_round()

    def _grant_leases(self) -> None:
        for who, (request, command) in list(self._want_lease.items()):
            answer: Answer
            if self.pool.over:
                answer = self._over()
            elif self.pool.free and self._may_draw(who):
                ranges = self.pool.lease(who, request.want, len(self.learners))
                self._dynamic += count(ranges)
                answer = Leased(tuple(ranges))
                self._idle.discard(who)
            elif not request.patient:
                answer = Wait()
            else:
                continue
            del self._want_lease[who]
            self._delivery.answer(command, answer)

    def _may_draw(self, who: Address) -> bool:
        """At the start one learner may have to train by itself until all of that is committed."""
        assert self.job is not None
        return len(self.pool.committed) >= self.job.alone or who == min(self._welcomed)

    def _open_round(self) -> None:
        if not any(self.pool.held.get(a) for a in [*self._welcomed, *self._departed.held]):
            return
        number = self.sync_rounds.resolved
        self._share(number)
        self.sync_rounds.expect(number, number + 1, sorted(self._welcomed))
        if self._checkpoint_due():
            self._checkpoints.keeping = number
        self._tell_close()

    def _checkpoint_due(self) -> bool:
        assert self.job is not None
        return self._checkpoints.due(self.job.checkpoint_every, len(self.pool.committed))

    def _tell_cut(self) -> None:
        """Dynamic sharding, by word: everybody keeps its model as it is."""
        number = self._checkpoints.keeping
        if self._checkpoints.cutting and number is not None:
            for member in sorted(self._welcomed):
                self._direct(member, TakeSnapshot(number))

    def _tell_close(self) -> None:
        """Dynamic sharding: the quota is spent, and everybody contributes what it has finished."""
        members = self.sync_rounds.participants(self.sync_rounds.resolved) or []
        number = self.sync_rounds.resolved
        order = CloseRound(number, tuple(members), self._checkpoints.keeping == number)
        for member in members:
            if member in self.learners:
                self._direct(member, order)

    # Messages.

    def _tell(self, to: Address, port: str, body: Body) -> None:
        self._delivery.send(Output(to, port, body))

    def _direct(self, to: Address, directive: Directive) -> None:
        self._tell(to, STRATEGY, directive)


def _address(item: tuple[Address, object]) -> Address:
    return item[0]
