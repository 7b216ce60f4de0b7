"""A comparison of strategies as a whole: compare.json, and the table in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.errors import UserError
from unisono.report.choice import Cell, Row
from unisono.report.outcome import RunOutcome
from unisono.report.statistics import LEVEL, Estimate

FORMAT_VERSION = 1
ALIKE = 0.95
"""A learner this fast, as a share of the others' median, is as fast as they are."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of comparing.

    Attributes:
        learners: of each strategy but solo.
        epochs: passes over the data.
        seeds: of each strategy's runs.
        rates: that each strategy was tried with, as multiples of what its rule gives.
        choosing: held-out speakers by whom rate and epoch were chosen.
        reporting: held-out speakers that the figures are of.
        rows: a strategy each, solo first.
    """

    learners: int
    epochs: int
    seeds: Sequence[int]
    rates: Sequence[float]
    choosing: Sequence[str]
    reporting: Sequence[str]
    rows: Sequence[Row]

    def to_json(self, root: Path) -> str:
        """The text of compare.json; runs are named from ``root``."""
        whole = {
            "format_version": FORMAT_VERSION,
            "learners": self.learners,
            "epochs": self.epochs,
            "seeds": list(self.seeds),
            "rates": list(self.rates),
            "interval": {"level": LEVEL, "method": "Student's t over seeds, paired with solo"},
            "choice_speakers": list(self.choosing),
            "report_speakers": list(self.reporting),
            "rows": [_row(row, root) for row in self.rows],
        }
        return json.dumps(whole, indent=1) + "\n"

    def lines(self) -> list[str]:
        """The table, with what is needed to read it."""
        width = max(len(row.name) for row in self.rows)
        level = f"{LEVEL:.0%}"
        heads = f"{'rate':>13} {'held out':>9} {level:>16} {'minus solo':>11} {level:>16} "
        heads += f"{'train':>9} {'right':>7} {'examples/s':>10} {'waiting':>8} {'staleness':>9}"
        lines = ["", f"{'strategy':{width}} {heads}"]
        lines += [f"{row.name:{width}} {_line(row)}" for row in self.rows]
        return [*lines, "", *self.notes()]

    def notes(self) -> list[str]:
        """Sentences on how the table came about."""
        seeds = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        means = f"{LEVEL:.0%} intervals: Student's t, paired by seed"
        how = "no intervals with one seed" if len(self.seeds) == 1 else means
        notes = [
            f"{self.learners} learners (solo: 1), {self.epochs} epochs, {seeds}. Log-probs in "
            f"nats a frame at each run's best epoch; {how}.",
            f"Rate and epoch were chosen on {len(self.choosing)} held-out speakers, the figures "
            f"are of {len(self.reporting)} others. A rate is a multiple of what the strategy's "
            "rule gives, and the rate that this makes.",
        ]
        edge = [row.name for row in self.rows if row.at_edge]
        if edge:
            notes.append(f"* at the edge of the grid ({', '.join(edge)}): widen --rates.")
        for row in self.rows:
            if row.pace is not None and row.pace.slowness < ALIKE:
                share = f"{row.pace.slowness:.2f} of the others' examples a second of computing"
                notes.append(f"{row.name}: learner {row.pace.slowest} is slowest, with {share}.")
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


def interval(estimate: Estimate | None) -> str:
    """An interval for the table; nothing where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.3f}..{estimate.high:.3f}"


def _line(row: Row) -> str:
    if row.chosen is None or row.pace is None:
        return f"{row.ended.value}: {row.reason}"
    rate = f"x{row.chosen.rate:g}{'*' if row.at_edge else ''} {row.chosen.learning_rate:.3g}"
    stale = "" if row.pace.staleness is None else f"{row.pace.staleness:.2f}"
    return (
        f"{rate:>13} {_mean(row.logprob, '.4f'):>9} {interval(row.logprob):>16} "
        f"{_mean(row.minus_solo, '+.4f'):>11} {interval(row.minus_solo):>16} "
        f"{_mean(row.train_logprob, '.4f'):>9} {_mean(row.accuracy, '.2%'):>7} "
        f"{row.pace.examples_per_s:10,.0f} {row.pace.waiting:8.1%} {stale:>9}"
    ).rstrip()


def _mean(estimate: Estimate | None, form: str) -> str:
    return "" if estimate is None else format(estimate.mean, form)


def _row(row: Row, root: Path) -> dict[str, Any]:
    chosen = row.chosen
    return {
        "name": row.name,
        "learners": row.learners,
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
