"""What a learner does next, by its assignments or leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from unisono.coordinator.client import Client
from unisono.coordinator.messages import (
    PLAN,
    Complete,
    RequestAssignment,
    RequestLease,
    SnapshotKept,
    Wait,
)
from unisono.fabric import Address, Fabric
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Range, count, cut
from unisono.strategies.base import RoundPlan, Sharding

NO_ROUND = -1


@dataclass(frozen=True)
class EndOfRound:
    """This learner's part of a round is trained, or was empty."""

    sync_round: int
    checkpoint: bool


class Minibatch(NamedTuple):
    """One position of the pool, leased or assigned to this learner."""

    position: int
    sync_round: int = NO_ROUND
    """Static sharding: the sync round that ends its round."""
    end: EndOfRound | None = None
    """Static sharding: set on the last minibatch of this learner's part."""
    stand_in: bool = False
    """A minibatch of another learner, computed with weight 0 to stay in lockstep."""
    place: int = 0
    """Its place in the order of time, which ``every`` and ``epoch`` count.

    Static sharding: at step ``k`` of a round member ``i`` of ``W`` has place ``k W + i`` of the
    round, though the positions of its part lie one after the other. Each place is that of one
    minibatch.
    """
    reached: int = 0
    """How far the pool is handed out once it is trained, as a position.

    Static sharding: the same for all learners at the same step of a round, and so are learning
    rates that depend on it.
    """
    members: int = 1
    """How many learners are in the run. Static sharding: those of the round."""


@dataclass(frozen=True)
class NewAssignment:
    """A new assignment begins."""

    assignment: Assignment


@dataclass(frozen=True)
class NoFreeLease:
    """No lease is free at the moment: share what was trained."""


@dataclass(frozen=True)
class PoolExhausted:
    """Everything is committed."""

    leader: Address | None
    """The one that sees to the final model."""
    stopped: bool = False
    """Whether ``stop`` ended the run before its last epoch."""


@dataclass(frozen=True)
class CheckpointDue:
    """A server's part of a checkpoint is to be written."""


Item = Minibatch | NewAssignment | EndOfRound | NoFreeLease | CheckpointDue | PoolExhausted


@dataclass(frozen=True)
class Planner:
    """Requests assignments or leases, ahead of training."""

    client: Client
    fabric: Fabric
    round_plan: RoundPlan
    checkpoint_every: int
    """Positions between checkpoints; 0: none."""
    want: int
    """Positions to ask for at a time (dynamic sharding)."""

    def items(self) -> Iterator[Item]:
        """All items, until the pool is empty and committed."""
        if self.round_plan.sharding is Sharding.STATIC:
            return self._static()
        return self._serving() if self.fabric.address.serves else self._dynamic()

    def _static(self) -> Iterator[Item]:
        number: int | None = None
        while True:
            answer = self.client.call(RequestAssignment(number, patient=False), PLAN.name)
            if isinstance(answer, Wait):
                yield NoFreeLease()
                answer = self.client.call(RequestAssignment(number, patient=True), PLAN.name)
            if isinstance(answer, Complete):
                yield PoolExhausted(answer.leader, answer.stopped)
                return
            assert not isinstance(answer, Wait)
            assignment = answer.assignment
            number = assignment.number + 1
            yield NewAssignment(assignment)
            for round_ in range(assignment.rounds):
                yield from self._round(assignment, round_)

    def _round(self, assignment: Assignment, round_: int) -> Iterator[Item]:
        sync_round = assignment.first + round_
        members = len(assignment.members)
        width = assignment.share * members
        whole = cut(assignment.ranges, round_ * width, (round_ + 1) * width)
        part = assignment.part(round_, self.fabric.address)
        steps = count(part)
        mine = assignment.members.index(self.fabric.address)
        keep = assignment.keep and round_ == 0
        end = EndOfRound(sync_round, keep or self._crosses(whole))
        for step, position in enumerate(_positions(part)):
            index = step * members + mine
            place = cut(whole, index, index + 1)[0][0]
            if step < steps - 1:
                reached = cut(whole, (step + 1) * members - 1, (step + 1) * members)[0][1]
                yield Minibatch(position, sync_round, place=place, reached=reached, members=members)
            else:
                yield Minibatch(
                    position, sync_round, end, place=place, reached=whole[-1][1], members=members
                )
        if part:
            return
        if self.round_plan.lockstep:
            yield Minibatch(
                whole[0][0], sync_round, end, True, reached=whole[-1][1], members=members
            )
        else:
            yield end

    def _crosses(self, ranges: list[Range]) -> bool:
        """Whether a round crosses a multiple of ``checkpoint_every``."""
        every = self.checkpoint_every
        return every > 0 and any(stop // every > start // every for start, stop in ranges)

    def _dynamic(self) -> Iterator[Item]:
        while True:
            answer = self.client.call(RequestLease(self.want, patient=False), PLAN.name)
            if isinstance(answer, Wait):
                yield NoFreeLease()
                answer = self.client.call(RequestLease(self.want, patient=True), PLAN.name)
            if isinstance(answer, Complete):
                yield PoolExhausted(answer.leader, answer.stopped)
                return
            assert not isinstance(answer, Wait)
            for position in _positions(answer.ranges):
                members = len(self.fabric.members().addresses().learners)
                yield Minibatch(position, place=position, reached=position + 1, members=members)

    def _serving(self) -> Iterator[Item]:
        """A server trains nothing: it is told when the pool is empty."""
        request = RequestLease(0, patient=True)
        number = self.client.tell(request, PLAN.name)
        while True:
            message = self.fabric.receive(PLAN).body
            if isinstance(message, SnapshotKept):
                yield CheckpointDue()
                continue
            answer = self.client.answer_to(request, number, message)
            if isinstance(answer, Complete):
                yield PoolExhausted(answer.leader, answer.stopped)
                return


def _positions(ranges: Iterable[Range]) -> Iterator[int]:
    for start, stop in ranges:
        yield from range(start, stop)
