"""A member with a bug may say anything well-formed: the coordinator neither raises nor hangs."""

from __future__ import annotations

import random

import pytest

from support.desk import Desk
from unisono.coordinator.job import Sharding
from unisono.coordinator.messages import (
    Closed,
    Command,
    Commit,
    Enter,
    Idle,
    Join,
    Leave,
    OfLearner,
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
    StateReceived,
    Stop,
    Sync,
)
from unisono.fabric import Address, learner
from unisono.pool.ranges import Notes, Ranges

NUMBERS = (-(10**9), -1, 0, 1, 2, 5, 11, 12, 13, 10**6, 10**12)


class Confused:
    """Draws operations of a learner that has lost its mind, but not its types."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def number(self) -> int:
        return self._draw.choice(NUMBERS)

    def flag(self) -> bool:
        return self._draw.random() < 0.5

    def address(self) -> Address:
        return learner(self._draw.choice((0, 1, 2, 77)), self._draw.choice((0, 0, 1)))

    def ranges(self) -> Ranges:
        return tuple((self.number(), self.number()) for _ in range(self._draw.randrange(3)))

    def notes(self) -> Notes:
        return {self.address(): self.ranges() for _ in range(self._draw.randrange(3))}

    def operation(self) -> OfLearner:
        return self._draw.choice(
            [
                Closed(self.address()),
                Commit(self.notes()),
                Enter(),
                Idle(),
                Join("here"),
                Leave(),
                PartWritten(self.number(), "folder", self.number()),
                ReportMalformed(self.address(), "nonsense"),
                RequestAssignment(self.number() if self.flag() else None, self.flag()),
                RequestLease(self.number(), self.flag()),
                Retire(),
                Return(self.ranges()),
                RoundBroken(self.number()),
                RoundCompleted(self.number(), self.notes()),
                Skip(self.ranges()),
                SnapshotTaken(self.number(), self.ranges()),
                StateReceived(self.number()),
                Stop(),
                Sync(),
            ]
        )


@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("by_round", [False, True])
def test_the_others_are_served(sharding: Sharding, by_round: bool) -> None:
    """300 conversations for each, a dozen operations each."""
    refused = 0
    for seed in range(300):
        desk, confused = Desk(2), Confused(seed)
        for number in (0, 1):
            desk.enrol(number, sharding=sharding, commits_by_round=by_round)
        for number in (0, 1):
            first = RequestAssignment(None, True) if sharding is Sharding.STATIC else Enter()
            desk.tell(number, first, reply="answers")
        sequence = desk.state.acknowledged(learner(1))
        for _ in range(12):
            operation, sequence = confused.operation(), sequence + 1
            if desk.state.objection(Command(learner(1), operation, sequence)):
                refused += 1
                desk.lose(1)  # as the service does
            if learner(1) not in desk.state.learners:
                break
            desk.tell(1, operation, reply="more")
        desk.call(0, Sync())
    assert refused
