"""Whose models are kept, against Kaldi's rules; and that what is left out is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import UserError
from unisono.strategies import Averaging, Candidate, KeepGood, Sharding, make
from unisono.testing.losses import Marks
from unisono.testing.simulated import ToyCluster


def weights(rule: KeepGood, objectives: Sequence[float | None], sync_round: int) -> list[float]:
    return rule.weights([Candidate(8, objective) for objective in objectives], sync_round)


def rule(gap: float = 1.0, *, best_first: bool = True) -> KeepGood:
    return KeepGood(tell=lambda: None, gap=gap, best_first=best_first)


def test_the_first_round_keeps_the_best_alone() -> None:
    assert weights(rule(), [-2.5, -2.0, -2.1], 0) == [0.0, 1.0, 0.0]
    assert weights(rule(), [-2.0, -2.0], 0) == [1.0, 0.0]
    assert weights(rule(best_first=False), [-2.5, -2.0, -2.1], 0) == [8.0, 8.0, 8.0]


def test_later_rounds_keep_those_within_one_of_the_best() -> None:
    assert weights(rule(), [-2.0, -3.0, -3.01, -2.5], 5) == [8.0, 8.0, 0.0, 8.0]
    assert weights(rule(0.0), [-2.0, -99.0], 5) == [8.0, 8.0]


@pytest.mark.parametrize("sync_round", [0, 7])
def test_who_says_nothing_finite_has_no_say(sync_round: int) -> None:
    nan, inf = float("nan"), float("inf")
    assert weights(rule(), [nan, -2.0, -inf, None], sync_round)[1] > 0
    assert weights(rule(), [nan, -2.0, -inf, None], sync_round)[::2] == [0.0, 0.0]
    assert weights(rule(), [nan, None], sync_round) == [8.0, 8.0]


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=8), st.integers(0, 3))
def test_the_best_is_always_kept_and_order_does_not_matter(
    objectives: list[float], sync_round: int
) -> None:
    kept = weights(rule(), objectives, sync_round)
    assert kept[objectives.index(max(objectives))] > 0
    if sync_round > 0:
        assert weights(rule(), objectives[::-1], sync_round) == kept[::-1]


@dataclass(frozen=True)
class ByNumber:
    """Learner 1 is the best of the first sync round, and the worst of the third."""

    def objective(self) -> float | None:
        return None

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        objectives = {0: [-3.0, -2.0, -2.5], 2: [-2.0, -4.0, -2.5]}.get(sync_round, [-2.0] * 3)
        said = [
            Candidate(candidate.examples, f)
            for candidate, f in zip(candidates, objectives, strict=True)
        ]
        return rule().weights(said, sync_round)


def test_what_was_left_out_is_in_no_model_and_counts_as_skipped() -> None:
    share, learners, rounds = 2, 3, 4
    total = share * learners * rounds
    marks = Marks(total, learners, 0.1)
    strategy = Averaging(every=4 * share, sharding=Sharding.STATIC, selection=ByNumber())
    run = ToyCluster(strategy=strategy, learners=learners, total=total, loss=marks, rate=0.1).run()
    counts = run.state.pool.counts
    assert counts.skipped == 2 * share + share
    assert counts.committed == total - counts.skipped
    assert counts.returned == counts.redone == 0
    consensus = run.survivors[0].consensus
    assert consensus is not None
    inside = (np.abs(marks.read(consensus)) > 1e-9).any(axis=1)
    out = {0, 1, 4, 5} | {12 + 2, 12 + 3}
    assert set(np.flatnonzero(~inside)) == out
    assert len(run.survivors[0].steps) == share * rounds


def test_it_cannot_be_named_in_a_configuration() -> None:
    with pytest.raises(UserError, match="no option 'selection'"):
        make("averaging", {"selection": "best"})
    assert Averaging(sharding=Sharding.DYNAMIC).selection.objective() is None
