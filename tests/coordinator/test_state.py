"""The coordinator's state machine: operations in, answers out, and once more from a journal."""

from __future__ import annotations

from typing import Any

import pytest

from support.desk import Desk, answers, picture
from unisono.coordinator.client import Abandoned
from unisono.coordinator.directives import Abandon, AskedToLeave, Failure
from unisono.coordinator.job import WORDS, Sharding
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.messages import (
    Admitted,
    Assigned,
    Command,
    Complete,
    Enter,
    Entered,
    EntryGranted,
    Failed,
    Idle,
    Join,
    Leased,
    Mismatch,
    Outdated,
    RequestAssignment,
    RequestLease,
    Retire,
    RoundBroken,
    RoundCompleted,
    StateReceived,
    Wait,
)
from unisono.coordinator.output import Output
from unisono.coordinator.requests import Action, Requested
from unisono.coordinator.snapshot import freeze, recover
from unisono.coordinator.state import State
from unisono.errors import Cause
from unisono.fabric import Address, Cancelled, learner
from unisono.strategies import AllReduce, Averaging
from unisono.testing.faults import KillCoordinator
from unisono.testing.properties import draw_scenario


def two(**job: Any) -> Desk:
    desk = Desk(expected=2)
    desk.enrol(0, **job)
    desk.enrol(1, **job)
    return desk


def assignment(desk: Desk, number: int, incarnation: int = 0) -> Assigned | Wait | Complete:
    return desk.call(number, RequestAssignment(None, patient=False), incarnation=incarnation)


def donor(answer: EntryGranted | Complete) -> Any:
    assert isinstance(answer, EntryGranted)
    return answer.donor


def test_an_assignment_waits_until_all_have_said_what_they_come_with() -> None:
    desk = Desk(expected=2)
    desk.enrol(0)
    assert desk.tell(0, RequestAssignment(None, patient=True), reply="answers") == []
    outputs = desk.tell(1, Join("here"), reply="answers")
    assert [type(answer) for answer in answers(outputs)] == [Admitted]
    # Who dies before it has said it is waited for no longer.
    assert [type(answer) for answer in answers(desk.lose(1))] == [Assigned]


def test_static_sharding_spares_those_who_begin_with_the_donors_state() -> None:
    desk = Desk(expected=4)
    for number, digest in enumerate(["same", "same", "other", "same"]):
        desk.enrol(number, digest=digest, total=40)
    first = assignment(desk, 2)
    assert isinstance(first, Assigned)
    assert first.assignment.donor == learner(0)
    assert first.assignment.newcomers == (learner(2),)
    # Who comes when training has begun needs its state, whatever it comes with.
    desk.enrol(5, digest="same", total=40)
    later = desk.call(0, RequestAssignment(1, patient=False))
    assert isinstance(later, Assigned) and later.assignment.newcomers == (learner(5),)


def test_without_a_digest_nobody_is_spared() -> None:
    desk = two(digest="")
    found = assignment(desk, 0)
    assert isinstance(found, Assigned) and found.assignment.newcomers == (learner(1),)


def test_dynamic_sharding_spares_those_who_begin_with_the_donors_state() -> None:
    desk = Desk(expected=4)
    for number, digest in enumerate(["same", "same", "other", "same"]):
        desk.enrol(number, digest=digest, sharding=Sharding.DYNAMIC)
    assert donor(desk.call(0, Enter())) is None
    assert donor(desk.call(1, Enter())) is None
    assert donor(desk.call(2, Enter())) == learner(0)
    assert desk.call(2, StateReceived(0)) == Entered()
    # Those who are in have one state, whoever is left of them and with whatever it came.
    desk.lose(0)
    desk.lose(1)
    assert donor(desk.call(3, Enter())) is None
    assert isinstance(desk.call(2, RequestLease(1, patient=False)), Leased)
    desk.enrol(5, digest="same", sharding=Sharding.DYNAMIC)
    assert donor(desk.call(5, Enter())) == learner(2)


def test_everybody_gets_the_same_assignment() -> None:
    desk = two()
    one, other = assignment(desk, 0), assignment(desk, 1)
    assert one == other
    assert isinstance(one, Assigned)
    assert one.assignment.ranges == ((0, 8),)
    assert one.assignment.donor == learner(0)
    assert one.assignment.newcomers == (learner(1),)


def test_a_repeated_operation_changes_nothing_and_is_answered_again() -> None:
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.tell(0, RoundCompleted(0, {learner(0): ((0, 2),)}))
    before = picture(desk.state)
    last: dict[Any, list[Output]] = {}
    for command in desk.commands:
        outputs = desk.state.apply(command)
        assert picture(desk.state) == before
        if command.reply:
            last[command.who, command.reply] = outputs
    # Only the last answer on a port can still be waited for.
    kinds = [[type(answer) for answer in answers(outputs)] for outputs in last.values()]
    assert kinds == [[Assigned], [Assigned]]


def test_an_operation_that_overtook_another_waits_for_it() -> None:
    """Sent to a coordinator that has just come back, before what the last one lost."""
    desk = two()
    before = picture(desk.state)
    late = Command(learner(0), RequestAssignment(None, patient=False), 3, "plan")
    missing = Command(learner(0), Idle(), 2)
    assert desk.state.apply(late) == []
    assert picture(desk.state) == before
    assert desk.state.apply(missing) == []
    assert [type(answer) for answer in answers(desk.state.apply(late))] == [Assigned]


@pytest.mark.parametrize(
    "other",
    [
        {"total": 13},
        {"fingerprint": "another model"},
        {"rounds": 3, "sharding": Sharding.DYNAMIC},
        {"checkpoint_every": 7},
    ],
)
def test_learners_that_mean_different_things_are_refused_in_one_line(other: dict[str, Any]) -> None:
    desk = Desk(expected=2)
    desk.enrol(0)
    answer = desk.enrol(1, **other)
    assert isinstance(answer, Mismatch)
    assert "\n" not in answer.reason
    for name, value in other.items():
        said = value.value if isinstance(value, Sharding) else value
        if name == "fingerprint":
            assert "strategy, model or data" in answer.reason
        else:
            assert WORDS.get(name, name) in answer.reason and str(said) in answer.reason


def test_the_work_of_the_dead_comes_back_once_no_sync_round_can_hold_it() -> None:
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.lose(1)
    counts = desk.state.pool.counts
    assert counts.returned == 0
    desk.tell(0, RoundBroken(0), reply="answers")
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
    desk.call(1, Retire())
    desk.enrol(1, incarnation=1)
    assert not desk.state.orphaned
    answer = assignment(desk, 1, incarnation=1)
    assert isinstance(answer, Assigned) and answer.assignment.donor == learner(1, 1)


def test_one_who_trained_in_an_earlier_life_may_not() -> None:
    """What it trained was returned, and would come in twice."""
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    desk.lose(0)
    desk.lose(1)
    desk.enrol(1, incarnation=1)
    assert desk.state.orphaned
    assert assignment(desk, 1, incarnation=1) == Wait()
    # A stranger may, as long as nothing is committed.
    desk.enrol(5)
    assert not desk.state.orphaned


def test_one_who_trained_since_the_checkpoint_gets_the_state_of_another() -> None:
    """It comes back with the round of the checkpoint, but not with its state any more."""
    desk = Desk(2)
    fields = {"sharding": Sharding.DYNAMIC, "pace": ((0, 1),)}
    for number in (0, 1):
        desk.enrol(number, round_=3, **fields)
    for number in (0, 1):
        assert donor(desk.call(number, Enter())) is None
    desk.call(1, RequestLease(1, patient=False))
    desk.lose(1)
    desk.enrol(1, incarnation=1, round_=3, **fields)
    assert donor(desk.call(1, Enter(), incarnation=1)) == learner(0)


def test_nobody_may_once_something_is_committed() -> None:
    desk = two()
    for number in (0, 1):
        assignment(desk, number)
    for number in (0, 1):
        desk.tell(number, RoundCompleted(0, {learner(0): ((0, 2),)}))
    assert desk.state.pool.counts.committed == 2
    assert set(desk.state.state_holders) == set(desk.state.learners)
    for number in (0, 1):
        desk.lose(number)
    desk.enrol(5)
    assert desk.state.orphaned
    assert assignment(desk, 5) == Wait()


def test_a_newcomer_whose_state_is_out_of_date_asks_again() -> None:
    """Dynamic sharding: its donor died after handing it over, and the others agreed without it."""
    desk = two(sharding=Sharding.DYNAMIC, pace=((0, 1),))
    desk.tell(0, Enter(), reply="answers")
    assert donor(desk.call(1, Enter())) == learner(0)
    assert desk.call(1, StateReceived(0)) == Entered()
    desk.enrol(2, sharding=Sharding.DYNAMIC, pace=((0, 1),))
    assert donor(desk.call(2, Enter())) == learner(0)
    desk.lose(0)
    desk.call(1, RequestLease(1, patient=False))
    desk.tell(1, RoundCompleted(0, {learner(1): ((0, 1),)}))
    assert desk.state.sync_rounds.resolved == 1
    assert desk.call(2, StateReceived(0)) == Outdated()
    assert donor(desk.call(2, Enter())) == learner(1)
    assert desk.call(2, StateReceived(1)) == Entered()


def test_a_failure_is_told_to_everybody_once() -> None:
    desk = two()
    outputs = desk.tell(0, Failed(Cause.EXCEPTION, "Traceback ..."))
    failure = Failure(learner(0), Cause.EXCEPTION, "Traceback ...")
    assert [o.body for o in outputs] == [Abandon(failure), Abandon(failure)]
    assert desk.tell(1, Failed(Cause.DIVERGED, "another")) == []
    assert desk.state.failure == failure


STRATEGIES = [AllReduce(), *(Averaging(every=8, sharding=sharding) for sharding in Sharding)]


def replayed(lived: list[tuple[Command, list[Output]]], scenario: Any) -> State:
    state = State(scenario.cluster.learners)
    for command, _ in lived:
        state.apply(command)
    return state


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_journal_replays_to_the_same_state_and_answers(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With operations of real runs under faults, as they are on the disk."""
    lived: list[tuple[Command, list[Output]]] = []
    apply = State.apply

    def remember(self: State, command: Command) -> list[Output]:
        outputs = list(apply(self, command))
        lived.append((command, outputs))
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
            except Cancelled as end:
                assert isinstance(end.__cause__, Abandoned)
                assert end.__cause__.failure.cause is Cause.MODEL_LOST
                continue
        again = State(scenario.cluster.learners)
        for command, (applied, outputs) in zip(journal.replay(), lived, strict=True):
            assert command == applied
            assert again.apply(command) == outputs
        assert picture(again) == picture(live)
        compacted = MemoryJournal()
        for place, (command, outputs) in enumerate(lived):
            if place % 7 == seed % 7:
                # As by a coordinator that is killed after compacting its journal here.
                compacted.compact(freeze(recover(compacted, scenario.cluster.learners)))
                later = recover(compacted, scenario.cluster.learners)
                assert picture(later) == picture(replayed(lived[:place], scenario))
                assert later.apply(command) == outputs
            compacted.append([command])
        assert picture(recover(compacted, scenario.cluster.learners)) == picture(live)
        committed = picture(again)
        for command in journal.replay():
            if command.sequence is not None:
                again.apply(command)
        assert picture(again) == committed


def test_nobody_is_asked_to_leave_before_one_that_stays_has_the_model() -> None:
    """Learner 1 is added, and learner 0 removed while the other one starts."""
    desk = Desk(expected=1)
    fields: dict[str, Any] = {"sharding": Sharding.DYNAMIC, "pace": ((0, 1),)}
    desk.enrol(0, **fields)
    assert donor(desk.call(0, Enter())) is None
    assert not asked_to_leave(desk.request(Requested(1, Action.REMOVE, 0)))
    desk.enrol(1, **fields)
    assert donor(desk.call(1, Enter())) == learner(0)
    assert asked_to_leave(desk.tell(1, StateReceived(0), reply="answers")) == [learner(0)]


def asked_to_leave(outputs: list[Output]) -> list[Address]:
    return [output.to for output in outputs if isinstance(output.body, AskedToLeave)]
