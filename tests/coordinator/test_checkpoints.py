"""Checkpoints without a common instant: whole when all have cut and written, or given up."""

from __future__ import annotations

import pytest

from unisono.coordinator.checkpoints import Checkpoints
from unisono.fabric import learner

ONE, TWO, LATE = learner(0), learner(1), learner(2)


def asked_for() -> Checkpoints:
    checkpoints = Checkpoints()
    checkpoints.asked = True
    assert checkpoints.due(every=1000, committed=8)
    checkpoints.order([ONE, TWO], [(0, 8)])
    return checkpoints


def test_it_is_awaited_until_the_last_part_is_written() -> None:
    checkpoints = asked_for()
    checkpoints.cut(ONE, 0, [(8, 9)])
    checkpoints.cut(TWO, 0, [])
    checkpoints.part(TWO, 0)
    assert checkpoints.whole(0, [ONE, TWO]) is None and checkpoints.is_awaited
    checkpoints.part(ONE, 0)
    assert checkpoints.whole(0, [ONE, TWO]) == [(0, 9)]
    assert not checkpoints.is_awaited


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_one_that_goes_without_its_part_ends_it_and_another_follows(cut: int) -> None:
    checkpoints = asked_for()
    for who in (ONE, TWO)[:cut]:
        checkpoints.cut(who, 0, [])
    checkpoints.remove(TWO)
    assert checkpoints.asked and not checkpoints.cutting
    checkpoints.part(ONE, 0)
    assert checkpoints.whole(0, [ONE]) is None
    assert checkpoints.due(every=1000, committed=8)
    checkpoints.order([ONE], [(0, 8)])
    checkpoints.cut(ONE, 1, [])
    checkpoints.part(ONE, 1)
    assert checkpoints.whole(1, [ONE]) == [(0, 8)]
    assert not checkpoints.is_awaited


def test_one_that_goes_after_its_part_ends_nothing() -> None:
    checkpoints = asked_for()
    for who in (ONE, TWO):
        checkpoints.cut(who, 0, [])
    checkpoints.part(TWO, 0)
    checkpoints.remove(TWO)
    checkpoints.part(ONE, 0)
    assert checkpoints.whole(0, [ONE]) == [(0, 8)]


def test_a_newcomer_that_goes_while_others_cut_ends_it_too() -> None:
    checkpoints = asked_for()
    checkpoints.remove(LATE)
    assert checkpoints.asked and not checkpoints.cutting


def test_one_that_joins_while_others_cut_ends_it_and_another_follows() -> None:
    checkpoints = Checkpoints()
    assert checkpoints.due(every=8, committed=8)
    checkpoints.order([ONE, TWO], [(0, 8)])
    checkpoints.cut(ONE, 0, [])
    checkpoints.join()
    assert not checkpoints.cutting
    checkpoints.cut(TWO, 0, [])
    for who in (ONE, TWO):
        checkpoints.part(who, 0)
    assert checkpoints.whole(0, [ONE, TWO]) is None
    assert checkpoints.due(every=8, committed=8) and not checkpoints.due(every=8, committed=8)


def test_with_rounds_one_that_goes_without_its_part_leaves_it_to_the_others() -> None:
    checkpoints = Checkpoints()
    checkpoints.keeping = 3
    checkpoints.fix(3, 4, [(0, 8)])
    checkpoints.part(ONE, 3)
    assert checkpoints.whole(3, [ONE, TWO]) is None
    checkpoints.remove(TWO)
    assert checkpoints.whole(3, [ONE]) == [(0, 8)]
