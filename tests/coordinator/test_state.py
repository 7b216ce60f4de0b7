"""The coordinator's state machine: operations in, answers out, and once more from a journal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.desk import Desk, picture
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.output import Output
from unisono.coordinator.state import State
from unisono.fabric import learner
from unisono.strategies import AllReduce, Averaging, Sharding
from unisono.testing.faults import KillCoordinator
from unisono.testing.properties import draw_scenario


def two(**job: Any) -> Desk:
    desk = Desk(expected=2)
    desk.enrol(0, **job)
    desk.enrol(1, **job)
    return desk


def assignment(desk: Desk, number: int, assignment_number: int | None = None) -> dict[str, Any]:
    return desk.call(number, "assignment", number=assignment_number, patient=False)


def test_a_assignment_waits_for_all_who_are_expected() -> None:
    desk = Desk(expected=2)
    desk.enrol(0)
    assert desk.tell(0, "assignment", reply="answers", number=None, patient=True) == []
    outputs = desk.tell(1, "join", reply="answers", endpoint="here")
    assert [o.body["kind"] for o in outputs if o.port == "answers"] == ["admitted", "assignment"]


def test_everybody_gets_the_same_assignment() -> None:
    desk = two()
    one, other = assignment(desk, 0), assignment(desk, 1)
    del one["sequence"], other["sequence"]
    assert one == other
    assert one["ranges"] == [[0, 8]]
    assert one["donor"] == "learner-0.0#0"
    assert one["newcomers"] == ["learner-1.0#0"]


def test_a_repeated_operation_changes_nothing_and_is_answered_again() -> None:
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.tell(0, "completed", sync_round=0, notes={"learner-0.0#0": [[0, 2]]})
    before = picture(desk.state)
    last: dict[tuple[str, str], list[Output]] = {}
    for operation in desk.operations:
        answers = desk.state.apply(operation)
        assert picture(desk.state) == before
        if "reply" in operation:
            last[operation["who"], operation["reply"]] = answers
    # Only the last answer on a port can still be waited for.
    kinds = [[o.body["kind"] for o in answers] for answers in last.values()]
    assert kinds == [["assignment"], ["assignment"]]


def test_an_operation_that_overtook_another_waits_for_it() -> None:
    """Sent to a coordinator that has just come back, before what the last one lost."""
    desk = two()
    before = picture(desk.state)
    request = {"kind": "assignment", "reply": "plan", "number": None, "patient": False}
    late = {**request, "who": "learner-0.0#0", "sequence": 3}
    missing = {"kind": "idle", "who": "learner-0.0#0", "sequence": 2}
    assert desk.state.apply(late) == []
    assert picture(desk.state) == before
    assert desk.state.apply(missing) == []
    assert [o.body["kind"] for o in desk.state.apply(late)] == ["assignment"]


@pytest.mark.parametrize(
    "other", [{"total": 13}, {"fingerprint": "another model"}, {"share": 3, "sharding": "dynamic"}]
)
def test_learners_that_mean_different_things_are_refused_in_one_line(other: dict[str, Any]) -> None:
    desk = Desk(expected=2)
    desk.enrol(0)
    answer = desk.enrol(1, **other)
    assert answer["kind"] == "refused"
    assert "\n" not in answer["reason"]
    for name, value in other.items():
        assert name in answer["reason"] and str(value) in answer["reason"]


def test_the_work_of_the_dead_comes_back_once_no_sync_round_can_hold_it() -> None:
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.lose(1)
    counts = desk.state.pool.counts
    assert counts.returned == 0
    desk.tell(0, "stand", reply="answers", sync_round=0)
    assert counts.returned == 4
    assert desk.state.pool.free == 8


def test_the_dead_are_not_members_again() -> None:
    desk = two()
    desk.lose(1)
    assert not desk.state.may_join(learner(1))
    assert desk.state.may_join(learner(1).next_incarnation())


def test_one_who_lost_its_donor_may_begin_while_nothing_is_committed() -> None:
    """It has trained nothing: its parameters are as good as the donor's were."""
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.lose(0)
    desk.call(1, "retire")
    desk.enrol(1, incarnation=1)
    assert not desk.state.orphaned
    answer = desk.call(1, "assignment", incarnation=1, number=None, patient=False)
    assert answer["donor"] == "learner-1.0#1"


def test_one_who_trained_in_an_earlier_life_may_not() -> None:
    """What it trained was returned, and would come in twice."""
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.lose(0)
    desk.lose(1)
    desk.enrol(1, incarnation=1)
    assert desk.state.orphaned
    answer = desk.call(1, "assignment", incarnation=1, number=None, patient=False)
    assert answer["kind"] == "wait"
    # A stranger may, as long as nothing is committed.
    desk.enrol(5)
    assert not desk.state.orphaned


def test_nobody_may_once_something_is_committed() -> None:
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    for number in (0, 1):
        desk.tell(number, "completed", sync_round=0, notes={"learner-0.0#0": [[0, 2]]})
    assert desk.state.pool.counts.committed == 2
    assert desk.state.state_holders == desk.state.learners
    for number in (0, 1):
        desk.lose(number)
    desk.enrol(5)
    assert desk.state.orphaned
    assert assignment(desk, 5)["kind"] == "wait"


def test_a_newcomer_whose_state_is_out_of_date_asks_again() -> None:
    """Dynamic sharding: its donor died after handing it over, and the others agreed without it."""
    desk = two(sharding="dynamic", share=1)
    desk.tell(0, "enter", reply="answers")
    assert desk.call(1, "enter")["donor"] == "learner-0.0#0"
    assert desk.call(1, "welcomed", rounds=0)["kind"] == "in"
    desk.enrol(2, sharding="dynamic", share=1)
    assert desk.call(2, "enter")["donor"] == "learner-0.0#0"
    desk.lose(0)
    desk.call(1, "draw", want=1, patient=False)
    desk.tell(1, "completed", sync_round=0, notes={"learner-1.0#0": [[0, 1]]})
    assert desk.state.sync_rounds.resolved == 1
    assert desk.call(2, "welcomed", rounds=0)["kind"] == "again"
    assert desk.call(2, "enter")["donor"] == "learner-1.0#0"
    assert desk.call(2, "welcomed", rounds=1)["kind"] == "in"


def test_a_failure_is_told_to_everybody_once() -> None:
    desk = two()
    outputs = desk.tell(0, "failed", traceback="Traceback ...")
    assert [o.body["kind"] for o in outputs] == ["abandon", "abandon"]
    assert desk.tell(1, "failed", traceback="another") == []
    assert desk.state.failure == {"who": "learner-0.0#0", "traceback": "Traceback ..."}


STRATEGIES = [AllReduce(), Averaging(every=8), Averaging(every=8, sharding=Sharding.DYNAMIC)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_journal_replays_to_the_same_state_and_answers(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With operations of real runs under faults, as they are on the disk."""
    lived: list[tuple[str, list[Output]]] = []
    apply = State.apply

    def remember(self: State, operation: dict[str, Any]) -> list[Output]:
        text = json.dumps(operation)
        outputs = list(apply(self, operation))
        lived.append((text, outputs))
        return outputs

    for seed in range(25):
        lived.clear()
        scenario = draw_scenario(lambda: strategy, seed, faults=True)
        scenario.cluster.faults = [
            fault for fault in scenario.faults if not isinstance(fault, KillCoordinator)
        ]
        journal = MemoryJournal()
        scenario.cluster.journal = journal
        with monkeypatch.context() as patch:
            patch.setattr(State, "apply", remember)
            try:
                live = scenario.cluster.run().state
            except Exception as end:
                assert "had the model" in str(end)
                continue
        again = State(scenario.cluster.learners)
        for operation, (text, outputs) in zip(journal.replay(), lived, strict=True):
            assert operation == json.loads(text)
            assert again.apply(operation) == outputs
        assert picture(again) == picture(live)
        committed = picture(again)
        for operation in journal.replay():
            if "sequence" in operation:
                again.apply(operation)
        assert picture(again) == committed
