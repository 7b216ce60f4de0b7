"""When a sync round counts, and what becomes of it when a participant dies."""

from __future__ import annotations

from typing import Any

from unisono.coordinator.directives import SendResult
from unisono.coordinator.messages import (
    Command,
    Fetch,
    Notes,
    Retry,
    RoundBroken,
)
from unisono.coordinator.output import Output
from unisono.coordinator.sync_rounds import SyncRounds
from unisono.fabric import Address, learner

A, B, C = (learner(number) for number in range(3))
NOTES: Notes = {A: ((0, 1),), B: ((1, 2),), C: ((2, 3),)}


def three() -> SyncRounds:
    sync_rounds = SyncRounds()
    sync_rounds.expect(0, 2, [A, B, C])
    return sync_rounds


def regroup(sync_rounds: SyncRounds, *living: Address) -> tuple[dict[Address, Any], list[Output]]:
    told: list[Output] = []
    answers = {command.who: answer for command, answer in sync_rounds.regroup(living, told.append)}
    return answers, told


def stand(sync_rounds: SyncRounds, who: Address, number: int) -> None:
    sync_rounds.stand(who, number, Command(who, RoundBroken(number), 0, "answers"))


def test_it_counts_when_it_is_complete_at_every_living_participant() -> None:
    sync_rounds = three()
    sync_rounds.complete(A, 0, NOTES)
    assert list(sync_rounds.resolve([A, B, C])) == []
    sync_rounds.complete(B, 0, {})
    assert list(sync_rounds.resolve([A, B, C])) == []
    sync_rounds.remove(C)
    assert list(sync_rounds.resolve([A, B])) == [NOTES]
    assert sync_rounds.resolved == 1
    assert list(sync_rounds.resolve([A, B])) == []


def test_what_only_the_dead_had_seen_does_not_count() -> None:
    sync_rounds = three()
    sync_rounds.complete(A, 0, NOTES)
    for who in (A, B, C):
        sync_rounds.remove(who)
    assert list(sync_rounds.resolve([])) == []
    assert not any(sync_rounds.may_contain(who) for who in (A, B, C))


def test_the_work_of_the_dead_may_be_in_a_sync_round_until_that_is_resolved() -> None:
    sync_rounds = three()
    sync_rounds.remove(C)
    assert sync_rounds.may_contain(C)
    for who in (A, B):
        sync_rounds.complete(who, 1, NOTES)
    list(sync_rounds.resolve([A, B]))
    assert not sync_rounds.may_contain(C)


def test_the_living_do_it_again_if_nobody_has_the_result() -> None:
    sync_rounds = three()
    sync_rounds.remove(C)
    stand(sync_rounds, A, 0)
    assert regroup(sync_rounds, A, B) == ({}, [])
    stand(sync_rounds, B, 0)
    answers, told = regroup(sync_rounds, A, B)
    assert told == []
    assert set(answers) == {A, B}
    assert set(answers.values()) == {Retry(0, attempt=1, excluded=(C,))}
    # It will never bring what it had: that can be trained by others.
    assert not sync_rounds.may_contain(C)


def test_attempts_are_numbered() -> None:
    sync_rounds = three()
    for attempt in (1, 2, 3):
        for who in (A, B, C):
            stand(sync_rounds, who, 0)
        answers, _ = regroup(sync_rounds, A, B, C)
        assert {answer.attempt for answer in answers.values()} == {attempt}


def test_the_result_is_fetched_from_one_who_has_it() -> None:
    sync_rounds = three()
    sync_rounds.complete(B, 0, NOTES)
    sync_rounds.remove(C)
    stand(sync_rounds, A, 0)
    answers, told = regroup(sync_rounds, A, B)
    assert answers == {A: Fetch(0, B)}
    assert told == [Output(B, "strategy", SendResult(0, (A,)))]
    # A coordinator that comes back orders it again, until it is no longer needed.
    assert sync_rounds.supplies == told
    sync_rounds.complete(A, 0, NOTES)
    assert list(sync_rounds.resolve([A, B])) == [NOTES, NOTES]
    assert sync_rounds.supplies == []


def test_one_who_stands_at_the_next_has_the_result_of_this() -> None:
    sync_rounds = three()
    sync_rounds.remove(C)
    stand(sync_rounds, B, 1)
    stand(sync_rounds, A, 0)
    answers, _ = regroup(sync_rounds, A, B)
    assert answers == {A: Fetch(0, B)}


def test_a_newcomer_has_what_is_resolved() -> None:
    sync_rounds = SyncRounds()
    sync_rounds.start(7)
    sync_rounds.enter(A)
    sync_rounds.expect(7, 8, [A])
    sync_rounds.complete(A, 7, {A: ((0, 1),)})
    assert list(sync_rounds.resolve([A])) == [{A: ((0, 1),)}]
    assert sync_rounds.resolved == 8
    assert not sync_rounds.open
