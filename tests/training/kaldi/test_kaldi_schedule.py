"""The numbers of Kaldi's recipe, by hand from its formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import UserError
from unisono.optim import Exponential
from unisono.training.kaldi.kaldi_schedule import (
    DropoutSchedule,
    combined_rounds,
    learners_in,
    progress_in,
    round_count,
)


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 60))
def test_a_ramp_is_linear_with_halves_rounded_up(first: int, last: int, rounds: int) -> None:
    """Between two numbers of learners it never turns back, and never strays by half a learner."""
    counts = [learners_in(i, rounds, first, last) for i in range(rounds + 1)]
    assert counts[0] == first and counts[-1] == last
    assert counts == sorted(counts, reverse=last < first)
    for i, count in enumerate(counts):
        exact = first + (last - first) * i / rounds
        assert count - 0.5 <= exact < count + 0.5 + 1e-9


def test_the_ramp_of_the_switchboard_recipe() -> None:
    """From 3 to 16: an archive each makes 2 A' / 19 rounds, which take nearly all archives."""
    archives = 190
    rounds = 2 * archives // (3 + 16)
    taken = sum(learners_in(i, rounds, 3, 16) for i in range(rounds))
    assert rounds == 20
    assert learners_in(10, rounds, 3, 16) == 10  # 9.5, rounded up
    assert abs(taken - archives) <= 16


def test_rounds_take_all_data() -> None:
    assert round_count(1600, 100, 4, 4) == 4
    assert round_count(1601, 100, 4, 4) == 5
    assert round_count(10, 100, 4, 4) == 1
    assert round_count(190 * 400, 400, 3, 16) == 20  # the ramp above


def test_rates_fall_from_round_to_round_to_exactly_the_last_one() -> None:
    """J lr0 (lrF/lr0)^(P/P_total), and J lrF in the last round; Kaldi's 3e-4 to 3e-5, 8 jobs."""
    jobs, first, last, rounds = 8, 3e-4, 3e-5, 40
    schedule = Exponential(start=jobs * first, end=last / first)
    rates = [schedule.rate(progress_in(i / rounds, 1 / rounds)) for i in range(rounds)]
    wanted = [jobs * first * (last / first) ** (i / rounds) for i in range(rounds - 1)]
    assert rates[:-1] == pytest.approx(wanted, rel=1e-12)
    assert rates[-1] == pytest.approx(jobs * last, rel=1e-12)
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("rounds", "half_epoch", "most", "wanted"),
    [
        (100, 5, 20, list(range(80, 100))),
        (30, 5, 20, list(range(15, 30))),
        (1, 0, 20, [0]),
        (100, 5, 0, []),
        (1000, 49, 20, list(range(951, 1000, 3))),
        (60, 49, 20, list(range(31, 60, 2))),
    ],
)
def test_which_models_are_combined(
    rounds: int, half_epoch: int, most: int, wanted: list[int]
) -> None:
    """The last 20, half of all at most; or the last half epoch and one, thinned out."""
    assert combined_rounds(rounds, half_epoch, most) == wanted


def test_dropout_goes_in_straight_lines_between_its_points() -> None:
    schedule = DropoutSchedule.parse("0,0@0.20,0.5@0.50,0")
    seen = {0.0: 0.0, 0.1: 0.0, 0.2: 0.0, 0.35: 0.25, 0.5: 0.5, 0.75: 0.25, 1.0: 0.0}
    assert {x: schedule.at(x) for x in seen} == pytest.approx(seen)
    assert schedule.most == 0.5
    assert DropoutSchedule.parse("0.1,0.3,0.1").at(0.5) == pytest.approx(0.3)
    assert DropoutSchedule.parse("0.1,0.3").at(0.25) == pytest.approx(0.15)
    jump = DropoutSchedule.parse("0,0@0.5,0.4@0.5,0.4")
    assert (jump.at(0.49), jump.at(0.51)) == (0.0, pytest.approx(0.4))


@pytest.mark.parametrize(
    "text", ["0.1", "0,x,0", "0,0.5@0.9,0.5@0.2,0", "0,1,0", "0@0.1,0", "0,0.1@1.5,0", "0,,0"]
)
def test_a_schedule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"recipe\.dropout is .*; for example 0,0@0\.2"):
        DropoutSchedule.parse(text)
