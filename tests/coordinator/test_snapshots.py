"""When a checkpoint without sync rounds is ordered, and what it counts."""

from __future__ import annotations

from typing import Any

from support.desk import Desk
from unisono.coordinator.directives import CheckpointWritten, Continue, TakeSnapshot
from unisono.coordinator.job import Sharding
from unisono.coordinator.messages import (
    Closed,
    Commit,
    Enter,
    Join,
    PartWritten,
    RequestLease,
    SnapshotTaken,
    StateReceived,
)
from unisono.coordinator.output import Output
from unisono.fabric import learner
from unisono.pool.ranges import Ranges

ZERO, ONE, TWO = (learner(number) for number in range(3))
JOB: dict[str, Any] = {
    "total": 100,
    "sharding": Sharding.DYNAMIC,
    "commits_by_round": False,
    "checkpoint_every": 2,
}


def training(learners: int) -> Desk:
    """All have entered; learner n has positions 4 n to 4 n + 3."""
    desk = Desk(learners)
    for number in range(learners):
        desk.enrol(number, **JOB)
    for number in range(learners):
        enter(desk, number)
    for number in range(learners):
        desk.tell(number, RequestLease(4, patient=True), reply="answers")
    return desk


def enter(desk: Desk, number: int) -> list[Output]:
    desk.tell(number, Enter(), reply="answers")
    return desk.tell(number, StateReceived(0), reply="answers")


def told(outputs: list[Output], kind: type) -> list[Any]:
    """To whom such a message goes."""
    return [output.to for output in outputs if isinstance(output.body, kind)]


def written(desk: Desk, learners: int, number: int) -> Ranges:
    """What is committed in a checkpoint of which all parts are written now."""
    for who in range(learners):
        outputs = desk.tell(who, PartWritten(number, "folder", 1))
    (body,) = [o.body for o in outputs if isinstance(o.body, CheckpointWritten)]
    return body.committed


def test_what_a_learner_says_of_its_own_work_counts() -> None:
    """What another commits of it may be later than its cut, which is on its way."""
    desk = training(2)
    assert told(desk.tell(0, Commit({ZERO: ((0, 2),)})), TakeSnapshot) == [ZERO, ONE]
    desk.tell(0, SnapshotTaken(0, ((2, 3),)))
    desk.tell(0, Commit({ONE: ((4, 6),)}))
    desk.tell(1, Commit({ONE: ((4, 5),)}))
    assert told(desk.tell(1, SnapshotTaken(0, ())), Continue) == [ZERO, ONE]
    assert written(desk, 2, 0) == ((0, 3), (4, 5))


def test_none_is_ordered_before_all_work_of_the_lost_is_known() -> None:
    desk = training(3)
    desk.lose(2)
    assert not told(desk.tell(0, Commit({ZERO: ((0, 2),)})), TakeSnapshot)
    desk.tell(0, Closed(TWO))
    desk.tell(1, Commit({TWO: ((8, 9),)}))
    assert told(desk.tell(1, Closed(TWO)), TakeSnapshot) == [ZERO, ONE]
    for who in (0, 1):
        desk.tell(who, SnapshotTaken(0, ()))
    assert written(desk, 2, 0) == ((0, 2), (8, 9))


def test_none_is_ordered_before_a_newcomer_has_entered() -> None:
    desk = training(2)
    desk.call(2, Join("here"))
    desk.open(2, **JOB)
    assert not told(desk.tell(0, Commit({ZERO: ((0, 2),)})), TakeSnapshot)
    assert told(enter(desk, 2), TakeSnapshot) == [ZERO, ONE, TWO]


def test_one_that_joins_before_all_have_cut_delays_it() -> None:
    desk = training(2)
    desk.tell(0, Commit({ZERO: ((0, 2),)}))
    desk.tell(0, SnapshotTaken(0, ()))
    outputs = desk.tell(2, Join("here"), reply="answers")
    assert told(outputs, Continue) == [ZERO, ONE]
    assert all(o.body.keep is None for o in outputs if isinstance(o.body, Continue))
    assert not told(desk.tell(1, SnapshotTaken(0, ())), Continue)
    desk.open(2, **JOB)
    orders = [o.body for o in enter(desk, 2) if isinstance(o.body, TakeSnapshot)]
    assert orders == [TakeSnapshot(1, view=desk.state.view.version)] * 3
