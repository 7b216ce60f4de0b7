"""Rate and epoch are chosen on one half of the speakers, and the other half is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.compared import Scores, make_compared, make_unfinished
from unisono.errors import Cause
from unisono.report.choice import Cell, judge
from unisono.report.outcome import RunOutcome, read_result

Grid = dict[float, list[list[Scores]]]
"""For each rate, for each seed, a check an epoch."""


def make_cells(folder: Path, grid: Grid, **more: object) -> list[Cell]:
    cells = []
    for rate, seeds in grid.items():
        results = []
        for seed, scores in enumerate(seeds):
            path = folder / f"{rate:g}" / str(seed)
            if scores:
                make_compared(path, scores, seed=seed, **more)  # type: ignore[arg-type]
            else:
                make_unfinished(path, "unisono: 10 steps were not finite\n", Cause.DIVERGED)
            results.append(read_result(path, seed))
        cells.append(Cell(rate, 0.05 * rate, results))
    return cells


def test_what_is_best_on_the_reported_speakers_is_not_looked_at(tmp_path: Path) -> None:
    grid: Grid = {
        0.5: [[(-3.0, -1.0), (-2.9, -1.1)]],
        1.0: [[(-2.5, -2.0), (-2.6, -1.5)]],
        2.0: [[(-2.8, -0.5), (-2.7, -0.6)]],
    }
    row = judge("solo", 1, make_cells(tmp_path, grid, strategy="solo", learners=1), None)
    assert row.chosen is not None and row.logprob is not None
    assert row.chosen.rate == 1.0
    assert row.logprob.mean == -2.0  # Neither -1.5 of the other epoch, nor -0.5 of another rate.
    assert not row.at_edge


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    """Seeds differ by much, the strategies by little: unpaired, nothing could be seen."""
    base = [-2.0, -3.0, -4.0]
    solo = judge("solo", 1, make_cells(tmp_path / "a", {1.0: [[(v, v)] for v in base]}), None)
    drop = [0.10, 0.11, 0.12]
    other: Grid = {1.0: [[(v - d, v - d)] for v, d in zip(base, drop, strict=True)]}
    row = judge("averaging", 2, make_cells(tmp_path / "b", other), solo)
    found = row.minus_solo
    assert found is not None and found.low is not None and found.high is not None
    reach = 2.920 * 0.01 / 3**0.5
    assert (found.mean, found.low, found.high) == pytest.approx(
        (-0.11, -0.11 - reach, -0.11 + reach), abs=1e-4
    )
    assert row.logprob is not None and row.logprob.low is not None
    assert row.logprob.low < -4.0
    assert solo.minus_solo is None


def test_a_rate_at_which_a_seed_diverged_cannot_be_chosen(tmp_path: Path) -> None:
    cells = make_cells(tmp_path, {1.0: [[(-3.0, -3.0)]] * 2, 2.0: [[(-1.0, -1.0)], []]})
    assert [cell.choice_logprob for cell in cells] == [-3.0, None]
    row = judge("averaging", 2, cells, None)
    assert row.chosen is cells[0]
    assert row.at_edge


def test_a_strategy_that_always_diverges_has_no_figures(tmp_path: Path) -> None:
    solo = judge("solo", 1, make_cells(tmp_path / "a", {1.0: [[(-3.0, -3.0)]]}), None)
    row = judge("averaging", 2, make_cells(tmp_path / "b", {1.0: [[]], 2.0: [[]]}), solo)
    assert (row.ended, row.chosen, row.minus_solo, row.pace) == (
        RunOutcome.DIVERGED,
        None,
        None,
        None,
    )
    assert "not finite" in row.reason
    again = judge("allreduce", 2, make_cells(tmp_path / "c", {1.0: [[(-3.0, -3.0)]]}), row)
    assert again.minus_solo is None  # There is nothing to compare with.


def test_pace_names_the_slowest_learner(tmp_path: Path) -> None:
    cells = make_cells(tmp_path, {1.0: [[(-3.0, -3.0)] * 4]}, learners=3, stale=1.5)
    pace = judge("averaging", 3, cells, None).pace
    assert pace is not None
    assert pace.slowest == "1"
    assert pace.slowness == pytest.approx(0.5)  # The others wait for half of their time.
    assert pace.waiting == pytest.approx((0.5 + 0.0 + 0.5) / 3)
    assert (pace.staleness, pace.rounds, pace.examples_per_s) == (1.5, 7, 3000.0)
