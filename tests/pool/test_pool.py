"""The pool hands every position out, keeps or takes it back, and loses none."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.fabric import from_plain, learner, to_plain
from unisono.pool.pool import Assignment, Pool
from unisono.pool.ranges import Range

MEMBERS = [learner(number) for number in range(5)]


def positions(ranges: list[Range] | tuple[Range, ...]) -> list[int]:
    return [p for start, stop in ranges for p in range(start, stop)]


def parts(assignment: Assignment) -> dict[tuple[int, int], list[int]]:
    """What each member trains, by sync round and member."""
    return {
        (assignment.first + round_, member.number): positions(assignment.part(round_, member))
        for round_ in range(assignment.rounds)
        for member in assignment.members
    }


def assign_all(
    pool: Pool, members: int, share: int, rounds: int, first: int = 0
) -> list[Assignment]:
    """Assigns until nothing is free; everything static is committed."""
    assignments: list[Assignment] = []
    while pool.free:
        assignment = pool.assign(len(assignments), first, MEMBERS[:members], share, rounds)
        first += assignment.rounds
        assignments.append(assignment)
        for member in assignment.members:
            pool.commit(member, list(pool.held[member]))
    return assignments


@settings(deadline=None)
@given(
    total=st.integers(1, 60),
    members=st.integers(1, 5),
    share=st.integers(1, 4),
    rounds=st.integers(1, 4),
)
def test_the_parts_of_an_assignment_are_all_of_it_once(
    total: int, members: int, share: int, rounds: int
) -> None:
    pool = Pool(total)
    seen: list[int] = []
    for assignment in assign_all(pool, members, share, rounds):
        static = [p for part in parts(assignment).values() for p in part]
        assert sorted(static) == positions(assignment.ranges)
        # Rounds come in the pool's order; only the last round of all may be short, and it is even.
        sizes = [len(part) for part in parts(assignment).values()]
        assert sizes[:-members] == [share] * (len(sizes) - members)
        assert max(sizes[-members:]) - min(sizes[-members:]) <= 1
        seen += static
    assert sorted(seen) == list(range(total))
    assert pool.over


@settings(deadline=None)
@given(
    total=st.integers(1, 60),
    members=st.integers(1, 5),
    share=st.integers(1, 4),
    rounds=st.integers(1, 4),
    other=st.integers(1, 4),
)
def test_a_part_does_not_depend_on_where_assignments_begin(
    total: int, members: int, share: int, rounds: int, other: int
) -> None:
    one = assign_all(Pool(total), members, share, rounds)
    two = assign_all(Pool(total), members, share, other)
    assert _joined(one) == _joined(two)


@settings(deadline=None)
@given(
    total=st.integers(1, 60),
    members=st.integers(1, 5),
    share=st.integers(1, 4),
    stopped_after=st.integers(0, 8),
)
def test_a_resumed_pool_assignments_the_same_parts(
    total: int, members: int, share: int, stopped_after: int
) -> None:
    """A run that stopped after some whole rounds goes on as if it had not."""
    whole = _joined(assign_all(Pool(total), members, share, rounds=2))
    done = min(total, stopped_after * share * members)
    resumed = Pool(total, [(0, done)] if done else [])
    rest = _joined(
        assign_all(resumed, members, share, rounds=3, first=-(-done // (share * members)))
    )
    assert rest == {key: part for key, part in whole.items() if key in rest}
    assert sorted(p for part in rest.values() for p in part) == list(range(done, total))
    assert resumed.counts.leased == total - done


def _joined(assignments: list[Assignment]) -> dict[tuple[int, int], list[int]]:
    joined: dict[tuple[int, int], list[int]] = {}
    for assignment in assignments:
        joined |= parts(assignment)
    return joined


def test_a_assignment_survives_the_wire() -> None:
    assignment = Pool(17).assign(3, 5, MEMBERS[:3], 2, 2, newcomers=MEMBERS[1:2], donor=MEMBERS[0])
    assert from_plain(Assignment, json.loads(json.dumps(to_plain(assignment)))) == assignment


def test_leases_shrink_with_what_is_left() -> None:
    pool = Pool(100)
    sizes = []
    while pool.free:
        sizes.append(len(positions(pool.lease(MEMBERS[len(sizes) % 4], 16, 4))))
    assert sizes[0] == 12  # half of an equal share of 100 among 4; less than was asked for
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-4:] == [1, 1, 1, 1]
    assert sum(sizes) == 100


def test_a_lease_is_never_larger_than_asked_for() -> None:
    assert positions(Pool(100).lease(MEMBERS[0], 3, 1)) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_every_position_is_in_exactly_one_state(seed: int) -> None:
    """Against a plain table of who has what, with settlings of what one does not hold, too."""
    source = random.Random(seed)
    total = source.choice([1, 7, 30])
    pool = Pool(total)
    owner: dict[int, int | str] = dict.fromkeys(range(total), "free")
    suspects: set[int] = set()
    returned = redone = handed_out = 0
    for _ in range(300):
        who = source.randrange(3)
        act = source.choice(["draw", "assignment", "commit", "skip", "return", "die"])
        low = source.randrange(total)
        ranges = [(low, min(total, low + source.randrange(1, 6)))]
        mine = [p for p in positions(ranges) if owner[p] == who]
        if act == "draw":
            taken = positions(pool.lease(MEMBERS[who], source.randrange(1, 5), 3))
            assert all(owner[p] == "free" for p in taken)
            owner |= dict.fromkeys(taken, who)
            handed_out += len(taken)
        elif act == "assignment" and pool.free:
            assignment = pool.assign(0, 0, MEMBERS[:3], 1, 2)
            for (_, member), part in parts(assignment).items():
                assert all(owner[p] == "free" for p in part)
                owner |= dict.fromkeys(part, member)
                handed_out += len(part)
        elif act in ("commit", "skip"):
            (pool.commit if act == "commit" else pool.skip)(MEMBERS[who], ranges)
            owner |= dict.fromkeys(mine, act)
            redone += len(suspects & set(mine))
            suspects -= set(mine)
        elif act in ("return", "die"):
            dead = act == "die"
            back = [p for p in owner if owner[p] == who] if dead else mine
            if dead:
                pool.give_all_back(MEMBERS[who])
                suspects |= set(back)
            else:
                pool.give_back(MEMBERS[who], ranges, suspect=False)
            owner |= dict.fromkeys(back, "free")
            returned += len(back)
        counts = pool.counts
        assert pool.free == sum(o == "free" for o in owner.values())
        assert positions(list(pool.committed)) == [
            p for p in owner if owner[p] in ("commit", "skip")
        ]
        for number in range(3):
            held = positions(list(pool.held.get(MEMBERS[number], ())))
            assert held == [p for p in owner if owner[p] == number]
        assert counts.committed == sum(o == "commit" for o in owner.values())
        assert counts.skipped == sum(o == "skip" for o in owner.values())
        assert (counts.leased, counts.returned, counts.redone) == (handed_out, returned, redone)
        held_now = sum(isinstance(o, int) for o in owner.values())
        assert counts.leased == counts.committed + counts.skipped + counts.returned + held_now
        assert pool.over == all(o in ("commit", "skip") for o in owner.values())


def test_an_empty_pool_is_not_over() -> None:
    """Before a learner has said what there is to train, nothing is over."""
    assert not Pool(0).over
