"""What an operation costs the coordinator does not grow with the number of learners."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from support.desk import Desk
from unisono.coordinator.job import Sharding
from unisono.coordinator.messages import (
    Commit,
    Enter,
    OfLearner,
    RequestAssignment,
    RequestLease,
    RoundCompleted,
    Skip,
    StateReceived,
)
from unisono.fabric import learner

FEW, MANY = 20, 200


def instructions(work: Callable[[], Any]) -> int:
    """Bytecode instructions that a call takes: a measure of time that no load disturbs."""
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed


def dynamic(learners: int, *, commits_by_round: bool) -> Desk:
    """All have entered, and each has a lease."""
    desk = Desk(expected=learners)
    pace = ((0, 1000),)
    for number in range(learners):
        desk.enrol(
            number,
            total=100_000,
            sharding=Sharding.DYNAMIC,
            pace=pace,
            commits_by_round=commits_by_round,
        )
    for number in range(learners):
        desk.tell(number, Enter(), reply="answers")
        desk.tell(number, StateReceived(0), reply="answers")
    for number in range(learners):
        desk.tell(number, RequestLease(4, patient=True), reply="answers")
    return desk


def static(learners: int) -> Desk:
    """All have the first assignment."""
    desk = Desk(expected=learners)
    for number in range(learners):
        desk.enrol(number, total=100_000, rounds=4)
    for number in range(learners):
        desk.tell(number, RequestAssignment(None, patient=True), reply="answers")
    return desk


def cost(desk: Desk, number: int, operation: OfLearner) -> int:
    return instructions(lambda: desk.tell(number, operation, reply="answers"))


WORD = [
    RequestLease(4, patient=True),
    Commit({learner(5): ((20, 24),), learner(6): ((24, 25),)}),
    Skip(((20, 21),)),
]


@pytest.mark.parametrize("operation", WORD, ids=lambda operation: type(operation).__name__)
@pytest.mark.parametrize("commits_by_round", [False, True])
def test_dynamic_sharding(operation: OfLearner, commits_by_round: bool) -> None:
    few, many = (
        cost(dynamic(learners, commits_by_round=commits_by_round), 5, operation)
        for learners in (FEW, MANY)
    )
    assert many <= 1.1 * few


def test_static_sharding() -> None:
    few, many = (
        cost(static(learners), 5, RoundCompleted(0, {learner(5): ((10, 12),)}))
        for learners in (FEW, MANY)
    )
    assert many <= 1.1 * few


def test_a_pool_that_is_dry() -> None:
    """Those who wait for a lease are not looked at whenever another says something."""

    def dry(learners: int) -> Desk:
        desk = dynamic(learners, commits_by_round=False)
        while desk.state.pool.free:
            desk.tell(1, RequestLease(100_000, patient=True), reply="answers")
        for number in range(learners):
            desk.tell(number, RequestLease(4, patient=True), reply="answers")
        return desk

    few, many = (cost(dry(n), 5, Commit({learner(5): ((20, 21),)})) for n in (FEW, MANY))
    assert many <= 1.1 * few


def test_nobody_who_asked_while_a_newcomer_entered_is_forgotten() -> None:
    """Leases are granted only then; who would not wait is told that there are none."""
    desk = Desk(expected=2)
    for number in (0, 1):
        desk.enrol(number, total=2, sharding=Sharding.DYNAMIC, commits_by_round=False)
    for number in (0, 1):
        desk.tell(number, Enter(), reply="answers")
        desk.tell(number, StateReceived(0), reply="answers")
    for number in (0, 1):
        desk.tell(number, RequestLease(1, patient=True), reply="answers")
    assert desk.state.pool.free == 0
    desk.enrol(2, total=2, sharding=Sharding.DYNAMIC, commits_by_round=False)
    desk.tell(2, Enter(), reply="answers")
    for number in (0, 1):
        assert desk.tell(number, RequestLease(1, patient=False), reply="answers") == []
    outputs = desk.tell(2, StateReceived(0), reply="answers")
    assert {output.to for output in outputs} == {learner(0), learner(1), learner(2)}
