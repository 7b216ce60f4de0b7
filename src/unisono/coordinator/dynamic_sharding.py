"""Dynamic sharding: each learner leases minibatches as fast as it trains them."""

from __future__ import annotations

from collections.abc import Sequence, Set

from unisono.coordinator.directives import CloseRound, Continue, SendState, TakeSnapshot
from unisono.coordinator.messages import (
    Answer,
    Command,
    Complete,
    Enter,
    Entered,
    EntryGranted,
    Leased,
    Outdated,
    RequestLease,
    SnapshotTaken,
    StateReceived,
    Wait,
)
from unisono.coordinator.run_state import RunState
from unisono.fabric.address import Address
from unisono.pool.ranges import count


class DynamicSharding:
    """Who has the run's parameters, who leases what, and when a round closes."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._entered: set[Address] = set()
        """Learners that have the run's parameters."""
        self._first: Address | None = None
        """The first of them, which is the donor."""
        self._begun_by: Address | None = None
        """The learner whose own parameters the run began with."""
        self._entering: dict[Address, Command] = {}
        self._donors: dict[Address, Address] = {}
        """By newcomer."""
        self._requests: dict[Address, tuple[RequestLease, Command]] = {}
        self._asked: dict[Address, None] = {}
        """Learners whose requests have come since leases were last granted."""
        self._idle: set[Address] = set()
        self._leasing = False
        """Whether the first learners have all entered."""
        self._leased = 0
        """Minibatches leased since the last round."""

    @property
    def state_holders(self) -> Set[Address]:
        """The living learners that have the run's parameters."""
        return self._entered

    @property
    def has_state_holders(self) -> bool:
        return bool(self._entered)

    @property
    def witnesses(self) -> Set[Address]:
        """Learners whose model may contain work of one that is gone."""
        return {*self._entered, *self._donors}

    # Newcomers.

    def enter(self, operation: Enter, command: Command) -> None:
        """Handles a learner's request for the run's parameters."""
        self._donors.pop(command.who, None)
        self._entering[command.who] = command

    def state_received(self, operation: StateReceived, command: Command) -> None:
        """Lets a newcomer in, unless a round was completed while it received its state."""
        run = self._run
        self._donors.pop(command.who, None)
        current = operation.rounds == run.sync_rounds.resolved and not run.sync_rounds.open
        current = current or run.commits_by_word
        if current:
            self._let_in(command.who)
        run.delivery.answer(command, Entered() if current else Outdated())

    def remove(self, who: Address) -> None:
        self._entered.discard(who)
        if who == self._first:
            self._first = min(self._entered, default=None)
        self._entering.pop(who, None)
        self._idle.discard(who)
        self._requests.pop(who, None)
        self._donors = {new: old for new, old in self._donors.items() if who not in (new, old)}
        cutting = self._run.checkpoints.cutting
        self._run.checkpoints.remove(who)
        if cutting:
            self._tell_after_cut(None)

    def join(self) -> None:
        """A member has joined, and has still to enter."""
        if self._run.checkpoints.cutting:
            self._run.checkpoints.join()
            self._tell_after_cut(None)

    def _let_in(self, who: Address) -> None:
        self._entered.add(who)
        self._first = who if self._first is None else min(self._first, who)
        self._run.sync_rounds.enter(who)

    def _welcome(self) -> None:
        """Finds donors for newcomers, between two sync rounds.

        In a run that is over a round may stay open: its members have left.
        """
        run = self._run
        if not self._entering or (run.sync_rounds.open and not run.pool.over):
            return
        may_begin = run.first_donor(self._entering) if self._first is None else None
        for who, command in sorted(self._entering.items(), key=lambda item: item[0]):
            donor = self._first
            if run.pool.over:
                del self._entering[who]
                run.delivery.answer(command, Complete())
                continue
            if who in run.restored and not run.pool.counts.committed:
                donor = None  # It has loaded its own part of the checkpoint.
            elif donor is None:
                if who != may_begin:
                    continue
                self._begun_by = who
            elif self._is_alike(who):
                donor = None
            del self._entering[who]
            run.delivery.answer(command, EntryGranted(donor))
            if donor is None:
                self._let_in(who)
            else:
                self._donors[who] = donor
                run.direct(donor, SendState(who))

    def _is_alike(self, who: Address) -> bool:
        """Whether nobody has trained yet, and a newcomer came with the same state as the others."""
        began = self._begun_by
        return not self._leasing and began is not None and self._run.begins_like(who, began)

    # Leases.

    def request(self, operation: RequestLease, command: Command) -> None:
        self._requests[command.who] = operation, command
        self._asked[command.who] = None

    def idle(self, who: Address) -> None:
        """Notes that a learner has shared all that it leased."""
        self._idle.add(who)

    def advance(self, held_by_departed: Sequence[Address]) -> None:
        """Lets newcomers in, grants leases, closes rounds and orders checkpoints."""
        run = self._run
        assert run.job is not None
        self._welcome()
        missing = len(self._entered) < len(run.members)
        if self._donors or (missing and not self._leasing):
            return
        self._leasing = True
        self._stop_after_checkpoint()
        self._grant_leases()
        if not run.job.commits_by_round:
            is_settled = not missing and not held_by_departed and not run.checkpoints.cutting
            if is_settled and self._checkpoint_due():
                run.checkpoints.order(sorted(self._entered), run.pool.committed)
                self._tell_cut()
            return
        spent = self._leased >= run.pace.share * len(self._entered)
        dry = bool(self._entered) and self._entered <= self._idle
        if (spent or (dry and not run.pool.over)) and not run.sync_rounds.open:
            self._leased = 0
            self._open_round(held_by_departed)

    def _stop_after_checkpoint(self) -> None:
        """After a request to stop: hands nothing more out once the checkpoint is determined."""
        run, checkpoints = self._run, self._run.checkpoints
        if not run.stopping or checkpoints.is_awaited:
            return
        by_round = not run.commits_by_word and checkpoints.keeping is not None
        if by_round and run.sync_rounds.resolved <= (checkpoints.keeping or 0):
            return
        run.stopping = False
        run.pool.stop()

    def _grant_leases(self) -> None:
        run = self._run
        for who in self._answerable():
            request, command = self._requests[who]
            answer: Answer
            if run.pool.over:
                answer = run.complete(self.state_holders)
            elif run.pool.free and self._may_lease(who):
                ranges = run.pool.lease(who, request.want, len(run.learners))
                self._leased += count(ranges)
                answer = Leased(tuple(ranges))
                self._idle.discard(who)
            elif not request.patient:
                answer = Wait()
            else:
                continue
            del self._requests[who]
            run.delivery.answer(command, answer)

    def _answerable(self) -> list[Address]:
        """Learners whose requests can be answered now, in order of arrival."""
        asked, self._asked = self._asked, {}
        if self._run.pool.over or (self._run.pool.free and not self._is_alone):
            return list(self._requests)
        return [who for who in dict.fromkeys((self._first, *asked)) if who in self._requests]

    @property
    def _is_alone(self) -> bool:
        """Whether this is the warm start, which one learner trains by itself."""
        assert self._run.job is not None
        return len(self._run.pool.committed) < self._run.job.alone

    def _may_lease(self, who: Address) -> bool:
        return not who.serves and (not self._is_alone or who == self._first)

    # Rounds and snapshots.

    def _open_round(self, held_by_departed: Sequence[Address]) -> None:
        run = self._run
        if not any(run.pool.held.get(a) for a in [*self._entered, *held_by_departed]):
            return
        number = run.sync_rounds.resolved
        run.share(number)
        run.sync_rounds.expect(number, number + 1, sorted(self._entered))
        if self._checkpoint_due():
            run.checkpoints.keeping = number
        self._tell_close()

    def snapshot_taken(self, operation: SnapshotTaken, command: Command) -> None:
        """Notes that a learner has kept its model for a checkpoint."""
        checkpoints = self._run.checkpoints
        if checkpoints.cutting:
            checkpoints.cut(command.who, operation.checkpoint, operation.ranges)
            self._tell_after_cut(checkpoints.keeping)

    def repeat_directives(self) -> None:
        """What a restarted coordinator must tell the living again."""
        for newcomer, donor in self._donors.items():
            self._run.direct(donor, SendState(newcomer))
        if self._run.is_dynamic:
            self._tell_close()
            self._tell_cut()
            self._tell_after_cut(self._run.checkpoints.keeping)

    def _checkpoint_due(self) -> bool:
        job = self._run.job
        assert job is not None
        return self._run.checkpoints.due(job.checkpoint_every, len(self._run.pool.committed))

    def _tell_cut(self) -> None:
        """Without sync rounds: orders everybody to keep its model for a checkpoint."""
        number = self._run.checkpoints.keeping
        if self._run.checkpoints.cutting and number is not None:
            for member in sorted(self._entered):
                self._run.direct(member, TakeSnapshot(number, self._run.view.version))

    def _tell_after_cut(self, keep: int | None) -> None:
        """All have cut, or the checkpoint was given up: learners that hold back work may go on."""
        if not self._run.checkpoints.cutting:
            for member in sorted(self._entered):
                self._run.direct(member, Continue(keep))

    def _tell_close(self) -> None:
        """The quota is spent: everybody contributes what it has finished."""
        rounds = self._run.sync_rounds
        number = rounds.resolved
        members = rounds.participants(number) or []
        order = CloseRound(number, tuple(members), self._run.checkpoints.keeping == number)
        for member in members:
            if member in self._run.members:
                self._run.direct(member, order)
