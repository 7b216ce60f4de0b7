"""Whose leases may be given out again, and when."""

from __future__ import annotations

from unisono.coordinator.departed import Departed
from unisono.fabric import Address, learner

A, B, C, D = (learner(number) for number in range(4))


def nothing(_: Address) -> bool:
    return False


def test_all_witnesses_must_have_told() -> None:
    departed = Departed()
    departed.add(A, [B, C])
    departed.close(A, B)
    assert departed.freed(nothing) == []
    departed.close(A, C)
    assert departed.freed(nothing) == [A]
    assert departed.freed(nothing) == []


def test_a_witness_that_goes_without_a_word_is_waited_for_through_its_own_witnesses() -> None:
    """B may have sent A's work to C after C had told of A: C says so when it tells of B."""
    departed = Departed()
    departed.add(A, [B, C])
    departed.close(A, C)
    departed.add(B, [C, D])
    departed.close(B, D)
    assert departed.freed(nothing) == []
    departed.close(B, C)
    assert departed.freed(nothing) == [A, B]


def test_a_witness_that_had_told_is_not_waited_for() -> None:
    departed = Departed()
    departed.add(A, [B, C])
    departed.close(A, B)
    departed.add(B, [C])
    departed.close(A, C)
    assert departed.freed(nothing) == [A]
    assert departed.held == [B]


def test_what_a_sync_round_may_contain_is_kept() -> None:
    departed = Departed()
    departed.add(A, [])
    assert departed.freed(lambda who: who == A) == []
    assert departed.freed(nothing) == [A]
