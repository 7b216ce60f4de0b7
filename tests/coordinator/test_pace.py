"""The pace of rounds: by a schedule, or by what rounds cost."""

from __future__ import annotations

import pytest

from unisono.coordinator.pace import LEAST_SHARE, MOST_SHARE, OVERHEAD, Pace, RoundTiming
from unisono.fabric import learner

MEMBERS = [learner(0), learner(1), learner(2)]


def adaptive(most: int = 1024) -> Pace:
    return Pace(((0, LEAST_SHARE),), adaptive=True, most=most)


def measure(pace: Pace, costs: list[float], step: float = 1.0) -> None:
    for member, cost in zip(MEMBERS, costs, strict=True):
        pace.measured(member, RoundTiming(cost, step * pace.share, pace.share))


def run_in(pace: Pace, costs: list[float], step: float = 1.0) -> int:
    for round_ in range(1, 80):
        measure(pace, costs, step)
        pace.at(round_, MEMBERS)
    return pace.share


@pytest.mark.parametrize("cost", [0.1, 0.9, 1.7, 5.0, 20.0])
def test_rounds_cost_at_most_the_overhead_and_are_not_needlessly_rare(cost: float) -> None:
    share = run_in(adaptive(), [cost] * 3)
    assert cost / share <= OVERHEAD or share == 1024
    assert share == LEAST_SHARE or cost / (share / 2) > OVERHEAD


@pytest.mark.parametrize(
    ("cost", "share"),
    [(0.1, LEAST_SHARE), (1.7, 64), (20.0, MOST_SHARE), (64.0, 64), (78.0, 128), (300.0, 512)],
)
def test_rounds_beside_computing_are_rare_only_where_links_cannot_carry_more(
    cost: float, share: int
) -> None:
    pace = Pace(((0, LEAST_SHARE),), adaptive=True, overlapped=True, most=1024)
    assert run_in(pace, [cost] * 3) == share


def test_waiting_for_a_slow_learner_is_no_reason_for_rarer_rounds() -> None:
    """The slowest waits for nobody: its time is the cost of a round."""
    assert run_in(adaptive(), [0.2, 16.0, 16.0]) == LEAST_SHARE


def test_a_short_run_has_rounds_all_the_same() -> None:
    pace = adaptive(most=2)
    assert pace.at(0, MEMBERS) == 2
    assert run_in(pace, [100.0] * 3) == 2


def test_nothing_is_chosen_before_everybody_has_measured() -> None:
    pace = adaptive()
    for _ in range(9):
        pace.measured(MEMBERS[0], RoundTiming(100.0, 16.0, 16))
    assert pace.at(1, MEMBERS) == LEAST_SHARE


def test_a_pace_that_fits_stays_though_measurements_vary() -> None:
    pace = adaptive()
    run_in(pace, [3.0] * 3)
    before = pace.schedule
    for round_ in range(100, 200):
        measure(pace, [2.0 + round_ % 3 * 0.5] * 3)
        pace.at(round_, MEMBERS)
    assert pace.schedule == before


def test_what_was_chosen_can_be_repeated() -> None:
    chosen = adaptive()
    shares = []
    for round_ in range(60):
        shares.append(chosen.at(round_, MEMBERS))
        measure(chosen, [3.0 if round_ < 15 else 9.0] * 3)
    assert len(set(shares)) > 2
    again = Pace(chosen.schedule)
    assert [again.at(round_, MEMBERS) for round_ in range(60)] == shares
