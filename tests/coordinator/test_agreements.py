"""When an agreement counts, and what becomes of it when a participant dies."""

from __future__ import annotations

from typing import Any

from unisono.coordinator.agreements import Agreements
from unisono.coordinator.output import Output
from unisono.fabric import learner

A, B, C = (learner(number) for number in range(3))
NOTES = {str(A): [[0, 1]], str(B): [[1, 2]], str(C): [[2, 3]]}


def three() -> Agreements:
    agreements = Agreements()
    agreements.expect(0, 2, [A, B, C])
    return agreements


def regroup(agreements: Agreements, *living: Any) -> tuple[dict[Any, dict[str, Any]], list[Output]]:
    told: list[Output] = []
    answers = {who: body for who, _, body in agreements.regroup(living, told.append)}
    return answers, told


def test_it_counts_when_it_is_complete_at_every_living_participant() -> None:
    agreements = three()
    agreements.complete(A, 0, NOTES)
    assert list(agreements.resolve([A, B, C])) == []
    agreements.complete(B, 0, None)
    assert list(agreements.resolve([A, B, C])) == []
    agreements.remove(C)
    assert list(agreements.resolve([A, B])) == [NOTES]
    assert agreements.resolved == 1
    assert list(agreements.resolve([A, B])) == []


def test_what_only_the_dead_had_seen_does_not_count() -> None:
    agreements = three()
    agreements.complete(A, 0, NOTES)
    for who in (A, B, C):
        agreements.remove(who)
    assert list(agreements.resolve([])) == []
    assert not any(agreements.may_contain(who) for who in (A, B, C))


def test_the_work_of_the_dead_may_be_in_an_agreement_until_that_is_resolved() -> None:
    agreements = three()
    agreements.remove(C)
    assert agreements.may_contain(C)
    for who in (A, B):
        agreements.complete(who, 1, NOTES)
    list(agreements.resolve([A, B]))
    assert not agreements.may_contain(C)


def test_the_living_do_it_again_if_nobody_has_the_result() -> None:
    agreements = three()
    agreements.remove(C)
    agreements.stand(A, 0, {"sequence": 1})
    assert regroup(agreements, A, B) == ({}, [])
    agreements.stand(B, 0, {"sequence": 2})
    answers, told = regroup(agreements, A, B)
    assert told == []
    assert set(answers) == {A, B}
    assert all(a["kind"] == "redo" and a["attempt"] == 1 for a in answers.values())
    assert answers[A]["excluded"] == [str(C)]
    # It will never bring what it had: that can be trained by others.
    assert not agreements.may_contain(C)


def test_attempts_are_numbered() -> None:
    agreements = three()
    for attempt in (1, 2, 3):
        for who in (A, B, C):
            agreements.stand(who, 0, {})
        answers, _ = regroup(agreements, A, B, C)
        assert {a["attempt"] for a in answers.values()} == {attempt}


def test_the_result_is_fetched_from_one_who_has_it() -> None:
    agreements = three()
    agreements.complete(B, 0, NOTES)
    agreements.remove(C)
    agreements.stand(A, 0, {})
    answers, told = regroup(agreements, A, B)
    assert answers == {A: {"kind": "fetch", "agreement": 0, "source": str(B)}}
    assert told == [
        Output(B, "strategy", {"kind": "supply", "agreement": 0, "to": [str(A)]}),
    ]
    # A coordinator that comes back orders it again, until it is no longer needed.
    assert agreements.supplies == told
    agreements.complete(A, 0, NOTES)
    assert list(agreements.resolve([A, B])) == [NOTES, NOTES]
    assert agreements.supplies == []


def test_one_who_stands_at_the_next_has_the_result_of_this() -> None:
    agreements = three()
    agreements.remove(C)
    agreements.stand(B, 1, {})
    agreements.stand(A, 0, {})
    answers, _ = regroup(agreements, A, B)
    assert answers == {A: {"kind": "fetch", "agreement": 0, "source": str(B)}}


def test_a_newcomer_has_what_is_resolved() -> None:
    agreements = Agreements()
    agreements.start(7)
    agreements.enter(A)
    agreements.expect(7, 8, [A])
    agreements.complete(A, 7, {str(A): [[0, 1]]})
    assert list(agreements.resolve([A])) == [{str(A): [[0, 1]]}]
    assert agreements.resolved == 8
    assert not agreements.open
