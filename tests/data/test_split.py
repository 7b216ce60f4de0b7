"""Whole speakers are held out, the same ones whenever the names and the seed are the same."""

from __future__ import annotations

import pytest

from unisono.data import halve, hold_out
from unisono.errors import UserError

NAMES = [f"s{k:02d}" for k in range(40)]


@pytest.mark.parametrize(
    ("speakers", "share", "count"), [(40, 0.1, 4), (40, 0.001, 1), (40, 0.999, 39), (2, 0.5, 1)]
)
def test_the_share_is_of_speakers(speakers: int, share: float, count: int) -> None:
    held = hold_out(NAMES[:speakers], share, seed=0)
    assert len(held) == count
    assert held < set(NAMES[:speakers])


def test_the_choice_depends_on_names_and_seed_alone() -> None:
    held = hold_out(NAMES, 0.25, seed=1)
    assert hold_out([*reversed(NAMES), *NAMES[:7]], 0.25, seed=1) == held
    assert hold_out(NAMES, 0.25, seed=2) != held


def test_every_speaker_is_held_out_by_some_seed() -> None:
    held = [hold_out(NAMES, 0.25, seed) for seed in range(100)]
    times = [sum(name in of for of in held) for name in NAMES]
    assert min(times) > 8  # 25 expected, standard deviation 4.3
    assert max(times) < 42


def test_nothing_is_held_out_on_request() -> None:
    assert hold_out(["only"], 0.0, seed=0) == frozenset()


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="held-out share"):
        hold_out(NAMES, share, seed=0)


def test_one_speaker_cannot_be_divided() -> None:
    with pytest.raises(UserError, match="1 speaker"):
        hold_out(["only", "only"], 0.1, seed=0)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 40])
def test_halves_are_disjoint_whole_and_even(count: int) -> None:
    names = NAMES[:count]
    one, other = halve([*reversed(names), *names])
    assert one | other == set(names)
    assert not one & other
    assert abs(len(one) - len(other)) <= 1
    assert (one, other) == halve(names)


@pytest.mark.parametrize("names", [[], ["only", "only"]])
def test_fewer_than_two_speakers_cannot_be_halved(names: list[str]) -> None:
    with pytest.raises(UserError, match="hold out at least 2"):
        halve(names)
