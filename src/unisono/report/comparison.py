"""A comparison of strategies as a whole: compare.json, and the table in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.errors import UserError
from unisono.report.choice import Cell, Row
from unisono.report.outcome import RunOutcome
from unisono.report.statistics import LEVEL, Estimate
from unisono.report.time_to_target import Ceiling, TimeToTarget
from unisono.text import counted

FORMAT_VERSION = 2
ALIKE = 0.95
"""A learner of this share of the others' median speed counts as equally fast."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of a comparison.

    Attributes:
        learners: of each strategy but solo.
        epochs: passes over the data.
        seeds: of each strategy's runs.
        rates: that each strategy was tried with, as multiples of what its rule gives.
        choosing: held-out speakers by whom rate and epoch were chosen.
        reporting: held-out speakers that the figures are of.
        rows: a strategy each, solo first.
        best_solo: the row of the best solo run, which the others are compared with.
        ceiling: what so many independent processes do on this machine, over one.
    """

    learners: int
    epochs: int
    seeds: Sequence[int]
    rates: Sequence[float]
    choosing: Sequence[str]
    reporting: Sequence[str]
    rows: Sequence[Row]
    best_solo: str = "solo"
    ceiling: Ceiling | None = None

    def to_json(self, root: Path) -> str:
        whole = {
            "format_version": FORMAT_VERSION,
            "learners": self.learners,
            "epochs": self.epochs,
            "seeds": list(self.seeds),
            "rates": list(self.rates),
            "interval": {"level": LEVEL, "method": "Student's t over seeds, paired with solo"},
            "choice_speakers": list(self.choosing),
            "report_speakers": list(self.reporting),
            "best_solo": self.best_solo,
            "ceiling": None if self.ceiling is None else asdict(self.ceiling),
            "rows": [_row(row, self.share_of_ceiling(row), root) for row in self.rows],
        }
        return json.dumps(whole, indent=1) + "\n"

    def share_of_ceiling(self, row: Row) -> float | None:
        """A row's speed-up to the first target as a share of the ceiling."""
        if self.ceiling is None or row.learners == 1 or not row.targets:
            return None
        speed_up = row.targets[0].speed_up
        return None if speed_up is None else speed_up.mean / self.ceiling.ratio

    def lines(self) -> list[str]:
        """The table, with what is needed to read it."""
        level = f"{LEVEL:.0%}"
        targets = next((row.targets for row in self.rows if row.targets), ())
        heads = ["strategy"]
        for target in targets:
            heads += [f"to {target.target:.3f}", "speed-up", level]
            heads += ["of ceiling"] if target is targets[0] and self.ceiling is not None else []
        heads += ["start-up", "rate", "held out", level, "minus solo", level, "train", "right"]
        heads += ["examples/s", "waiting", "staleness"]
        heads += ["word errors", level] if any(row.word_errors for row in self.rows) else []
        cells = [self._cells(row, len(heads)) for row in self.rows]
        return ["", *align([heads, *cells]), "", *self.notes()]

    def _cells(self, row: Row, count: int) -> list[str]:
        if row.chosen is None or row.pace is None:
            return [row.name, f"{row.ended.value}: {row.reason}"]
        cells = [row.name]
        for target in row.targets:
            cells += [time_of(target), _mean(target.speed_up, ".2f"), interval(target.speed_up, 2)]
            if target is row.targets[0] and self.ceiling is not None:
                share = self.share_of_ceiling(row)
                cells.append("" if share is None else f"{share:.2f}")
        rate = f"x{row.chosen.rate:g}{'*' if row.at_edge else ''} {row.chosen.learning_rate:.3g}"
        stale = "" if row.pace.staleness is None else f"{row.pace.staleness:.2f}"
        cells += [f"{row.start_up_s:.1f} s", rate]
        cells += [_mean(row.logprob, ".4f"), interval(row.logprob)]
        cells += [_mean(row.minus_solo, "+.4f"), interval(row.minus_solo)]
        cells += [_mean(row.train_logprob, ".4f"), _mean(row.accuracy, ".2%")]
        cells += [f"{row.pace.examples_per_s:,.0f}", f"{row.pace.waiting:.1%}", stale]
        if len(cells) < count:
            cells += [_mean(row.word_errors, ".2%"), interval(row.word_errors)]
        return cells

    def notes(self) -> list[str]:
        """Sentences on how the table came about."""
        sizes = [(self.epochs, "epoch"), (len(self.seeds), "seed")]
        learners = f"{counted(self.learners, 'learner')} (solo: 1)"
        job = ", ".join([learners, *(counted(number, what) for number, what in sizes)])
        means = f"{LEVEL:.0%} intervals: Student's t, paired by seed"
        how = "no intervals with one seed" if len(self.seeds) == 1 else means
        notes = [*self._target_notes()]
        notes += [
            f"{job}. Log-probs in nats a frame at each run's best validation; {how}.",
            f"Rate and validation were chosen on {len(self.choosing)} held-out speakers, the "
            f"figures are of {len(self.reporting)} others. A rate is a multiple of what the "
            "strategy's rule gives, and the rate that this makes.",
        ]
        edge = [row.name for row in self.rows if row.at_edge]
        if edge:
            notes.append(f"* at the edge of the grid ({', '.join(edge)}): widen --rates.")
        for row in self.rows:
            if row.ended is RunOutcome.DIVERGED:
                notes.append(f"{row.name} diverged at every rate; lower --rates.")
            if row.pace is not None and row.pace.slowness < ALIKE:
                share = f"{row.pace.slowness:.2f} of the others' examples a second of computing"
                notes.append(f"{row.name}: learner {row.pace.slowest} is slowest, with {share}.")
        return notes

    def _target_notes(self) -> list[str]:
        targets = next((row.targets for row in self.rows if row.targets), None)
        if targets is None:
            return ["No solo run finished: there is no target to measure the time to."]
        margins = " and ".join(f"{target.margin:g}" for target in targets)
        notes = [
            "Time to target: seconds of training, without start-up, until the held-out log-prob "
            f"is that of the best solo run ({self.best_solo}) at its end less {margins}; speed-ups "
            "are over that run's time to the same log-prob. never (x): the highest log-prob was x."
        ]
        if self.ceiling is not None:
            notes.append(self.ceiling.line())
        return notes

    def complain(self) -> None:
        """Raises UserError if a run failed for another reason than divergence."""
        results = [r for row in self.rows for cell in row.grid for r in cell.results]
        failed = [result for result in results if result.ended is RunOutcome.FAILED]
        if failed:
            raise UserError(
                f"{len(failed)} of {len(results)} runs failed, first {failed[0].run}: "
                f"{failed[0].reason}; the same command tries them again"
            )


def interval(estimate: Estimate | None, digits: int = 3) -> str:
    """An interval for the table; nothing where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.{digits}f}..{estimate.high:.{digits}f}"


def time_of(target: TimeToTarget) -> str:
    """The time to a target for the table; where it was not reached, how far the runs got."""
    if target.time is None:
        return f"never ({target.best:.3f})"
    some = len(target.seconds) - target.reached
    missed = f" ({target.reached} of {len(target.seconds)})" if some else ""
    return f"{target.time.mean:.1f} s{missed}"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right.

    A row of fewer cells than the first, which is the heads, ends in a sentence.
    """
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        rest = row[1:] if len(row) < len(rows[0]) else map(str.rjust, row[1:], widths[1:])
        lines.append(" ".join([row[0].ljust(widths[0]), *rest]).rstrip())
    return lines


def _mean(estimate: Estimate | None, form: str) -> str:
    return "" if estimate is None else format(estimate.mean, form)


def _row(row: Row, share: float | None, root: Path) -> dict[str, Any]:
    chosen = row.chosen
    return {
        "name": row.name,
        "learners": row.learners,
        "time_to_target": [_target(target) for target in row.targets],
        "share_of_ceiling": share,
        "start_up_s": row.start_up_s,
        "curves": [asdict(curve) for curve in row.curves],
        "word_errors": _plain(row.word_errors),
        "ended": row.ended.value,
        "reason": row.reason,
        "rate": None if chosen is None else chosen.rate,
        "learning_rate": None if chosen is None else chosen.learning_rate,
        "at_edge": row.at_edge,
        "logprob": _plain(row.logprob),
        "accuracy": _plain(row.accuracy),
        "train_logprob": _plain(row.train_logprob),
        "minus_solo": _plain(row.minus_solo),
        "train_minus_solo": _plain(row.train_minus_solo),
        "pace": None if row.pace is None else asdict(row.pace),
        "grid": [_cell(cell, root) for cell in row.grid],
    }


def _target(target: TimeToTarget) -> dict[str, Any]:
    return {
        **asdict(target),
        "reached": target.reached,
        "time": _plain(target.time),
        "speed_up": _plain(target.speed_up),
        "best": target.best if math.isfinite(target.best) else None,
    }


def _cell(cell: Cell, root: Path) -> dict[str, Any]:
    runs = [
        {
            "seed": result.seed,
            "run": str(result.run.relative_to(root)),
            "ended": result.ended.value,
            "reason": result.reason,
            "best": None if result.best is None else asdict(result.best),
        }
        for result in cell.results
    ]
    return {
        "rate": cell.rate,
        "learning_rate": cell.learning_rate,
        "choice_logprob": cell.choice_logprob,
        "runs": runs,
    }


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    known = estimate.low is not None
    return {"mean": estimate.mean, "interval": [estimate.low, estimate.high] if known else None}
