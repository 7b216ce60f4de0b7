"""A comparison's verdict: the best rate of each strategy, and how it stands beside solo.

Rate and epoch are chosen on one half of the held-out speakers, the figures are of the other half:
what was chosen as the best of many on some speakers is too good there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.report.history import History, Track
from unisono.report.outcome import Check, Result, RunOutcome
from unisono.report.statistics import Estimate, estimate
from unisono.report.time_to_target import MARGINS, Curve, TimeToTarget, read_curve, time_to_target
from unisono.runs.directory import RunDirectory


@dataclass(frozen=True)
class Cell:
    """One strategy at one rate: a run a seed.

    Attributes:
        rate: as a multiple of what the strategy's own rule gives.
        learning_rate: the same as a number: the start rate, with multiple and rule.
        results: what came of each seed's run.
    """

    rate: float
    learning_rate: float
    results: Sequence[Result]

    @property
    def checks(self) -> list[Check]:
        """The best check of each seed's run; fewer than seeds where one came to nothing."""
        return [result.best for result in self.results if result.best is not None]

    @property
    def choice_logprob(self) -> float | None:
        """What the rate is chosen by, mean over seeds; None unless every run finished."""
        checks = self.checks
        if not checks or len(checks) < len(self.results):
            return None
        return statistics.fmean(check.choice_logprob for check in checks)


@dataclass(frozen=True)
class Pace:
    """How fast the runs at the chosen rate were, means over seeds.

    Attributes:
        wall_s: seconds of training, without start-up.
        examples_per_s: of all learners.
        rounds: acts of sharing.
        bytes_sent: by all learners, for sharing.
        staleness: mean over updates; None where none was noted.
        waiting: share of the learners' time that went into waiting for data and for others.
        slowest: the learner with the fewest examples a second of computing, first seed.
        slowness: its examples a second of computing, as a share of the median of the others.
    """

    wall_s: float
    examples_per_s: float
    rounds: float
    bytes_sent: float
    staleness: float | None
    waiting: float
    slowest: str
    slowness: float


@dataclass(frozen=True)
class Row:
    """One strategy. Without a rate at which every seed's run finished, there are no figures.

    Attributes:
        name: the strategy with its options.
        learners: how many.
        ended: how the runs at the chosen rate ended; without one, the worst of all.
        reason: of the first run that did not finish, where no rate could be chosen.
        grid: all rates.
        chosen: the chosen one.
        logprob, accuracy, train_logprob: at each run's best epoch, on the reported speakers.
        minus_solo, train_minus_solo: log-prob minus that of the best solo run of the same seed.
        pace: how fast it was.
        curves: log-prob of the reported speakers against time, a seed each.
        targets: time to each target; none where no solo run finished.
        word_errors: word error rate of the final models on a test set.
    """

    name: str
    learners: int
    grid: Sequence[Cell]
    ended: RunOutcome
    reason: str = ""
    chosen: Cell | None = None
    logprob: Estimate | None = None
    accuracy: Estimate | None = None
    train_logprob: Estimate | None = None
    minus_solo: Estimate | None = None
    train_minus_solo: Estimate | None = None
    pace: Pace | None = None
    curves: Sequence[Curve] = ()
    targets: Sequence[TimeToTarget] = ()
    word_errors: Estimate | None = None

    @property
    def start_up_s(self) -> float:
        """Seconds before the training began, mean over seeds."""
        return statistics.fmean(curve.start_up_s for curve in self.curves) if self.curves else 0.0

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is the lowest or highest: a wider grid may hold a better one."""
        rates = [cell.rate for cell in self.grid]
        found = self.chosen is not None and self.chosen.rate in (min(rates), max(rates))
        return found and len(rates) > 1


def judge(name: str, learners: int, grid: Sequence[Cell], solo: Row | None) -> Row:
    """Chooses a strategy's rate, and compares it with the best solo run (None: this is it)."""
    finished = [(mean, cell) for cell in grid if (mean := cell.choice_logprob) is not None]
    if not finished:
        bad = [r for cell in grid for r in cell.results if r.ended is not RunOutcome.FINISHED]
        worst = next((r for r in bad if r.ended is RunOutcome.FAILED), bad[0])
        return Row(name, learners, grid, worst.ended, worst.reason)
    _, chosen = max(finished, key=lambda pair: pair[0])
    mine = chosen.checks
    theirs = [] if solo is None or solo.chosen is None else solo.chosen.checks
    pairs = list(zip(mine, theirs, strict=True)) if theirs else []
    curves = [read_curve(result.run, result.seed, "report_logprob") for result in chosen.results]
    alone = curves if solo is None else solo.curves
    return Row(
        name,
        learners,
        grid,
        RunOutcome.FINISHED,
        chosen=chosen,
        logprob=estimate([check.logprob for check in mine]),
        accuracy=estimate([check.accuracy for check in mine]),
        train_logprob=estimate([check.train_logprob for check in mine]),
        minus_solo=estimate([a.logprob - b.logprob for a, b in pairs]) if pairs else None,
        train_minus_solo=(
            estimate([a.train_logprob - b.train_logprob for a, b in pairs]) if pairs else None
        ),
        pace=_pace(chosen),
        curves=curves,
        targets=[time_to_target(curves, alone, margin) for margin in MARGINS] if alone else [],
    )


def best_solo(rows: Sequence[Row]) -> Row | None:
    """Of solo's rows, an optimizer each, the one that is best on the choosing speakers."""

    def height(row: Row) -> float:
        mean = None if row.chosen is None else row.chosen.choice_logprob
        return -math.inf if mean is None else mean

    best = max(rows, key=height)
    return None if best.chosen is None else best


def _pace(cell: Cell) -> Pace:
    summaries = [RunDirectory(result.run).read_summary() for result in cell.results]
    told = [summary for summary in summaries if summary is not None]
    stale = [summary.staleness.mean for summary in told if summary.staleness.histogram]
    tracks = History.read(cell.results[0].run, "").tracks() or [Track("0")]
    slow = min(tracks, key=lambda track: track.speed)
    others = [track.speed for track in tracks if track is not slow] or [slow.speed]
    waited = sum(track.data_wait_s + track.round_wait_s for track in tracks)
    return Pace(
        wall_s=statistics.fmean(summary.wall_s for summary in told),
        examples_per_s=statistics.fmean(summary.examples_per_s for summary in told),
        rounds=statistics.fmean(summary.rounds for summary in told),
        bytes_sent=statistics.fmean(summary.bytes_sent for summary in told),
        staleness=statistics.fmean(stale) if stale else None,
        waiting=min(1.0, waited / max(1e-9, sum(track.seconds for track in tracks))),
        slowest=slow.name,
        slowness=slow.speed / max(1e-9, statistics.median(others)),
    )
