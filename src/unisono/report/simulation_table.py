"""The table of ``unisono simulate``: virtual time to target, and where the time went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unisono.errors import UserError
from unisono.report.comparison import align, interval, time_of
from unisono.report.history import History
from unisono.report.statistics import LEVEL
from unisono.report.time_to_target import Curve, TimeToTarget, read_curve, time_to_target
from unisono.runs.summary import Summary

MARGINS = (0.02, 0.05, 0.1)
"""Nats a frame below the best solo run's final log-prob; the first is the headline's."""


@dataclass(frozen=True)
class SimulatedRow:
    """The finished runs of one strategy.

    Attributes:
        name: the strategy with its options.
        is_solo: whether the others may be measured against it.
        runs: seed and directory of each.
    """

    name: str
    is_solo: bool
    runs: Sequence[tuple[int, Path]]

    @cached_property
    def histories(self) -> list[History]:
        return [History.read(path, "") for _, path in self.runs]

    @cached_property
    def curves(self) -> list[Curve]:
        return [read_curve(path, seed, "logprob") for seed, path in self.runs]

    @property
    def summaries(self) -> list[Summary]:
        return [history.summary for history in self.histories if history.summary is not None]

    @property
    def final(self) -> float:
        return statistics.fmean(curve.final for curve in self.curves)

    def shares(self) -> tuple[float, float]:
        """Of the learners' time: computing, and waiting for others or for minibatches."""
        computing, waiting = [], []
        for history, summary in zip(self.histories, self.summaries, strict=True):
            time = max(summary.wall_s, 1e-9) * summary.learners
            computed = history.named("simulated")[-1]["computed_s"]
            left = history.named("left")
            computing.append(sum(computed) / time)
            waiting.append(sum(e["data_wait_s"] + e["round_wait_s"] for e in left) / time)
        return statistics.fmean(computing), statistics.fmean(waiting)


def table(rows: Sequence[SimulatedRow], epochs: int) -> list[str]:
    """The table as lines, with what is needed to read it.

    Raises:
        UserError: no solo run finished.
    """
    solos = [row for row in rows if row.is_solo and row.runs]
    if not solos:
        raise UserError("every solo run diverged: lower rate.start")
    best = max(solos, key=lambda row: row.final)
    targets = {
        row.name: [time_to_target(row.curves, best.curves, margin) for margin in MARGINS]
        for row in rows
        if row.runs
    }
    heads = ["strategy"]
    for target in targets[best.name]:
        heads += [f"to {target.target:.3f}", "speed-up"]
    heads += ["log-prob", "s an epoch", "computing", "waiting", "staleness", "MB sent"]
    cells = [_cells(row, targets.get(row.name, []), epochs) for row in rows]
    return ["", *align([heads, *cells]), "", *_notes(best, targets[best.name])]


def _cells(row: SimulatedRow, targets: Sequence[TimeToTarget], epochs: int) -> list[str]:
    if not targets:
        return [row.name, "diverged"]
    cells = [row.name]
    for target in targets:
        speed_up = target.speed_up
        spread = interval(speed_up, 2)
        mean = "" if speed_up is None else f"{speed_up.mean:.2f}"
        cells += [time_of(target), f"{mean} ({spread})" if spread else mean]
    summaries = row.summaries
    computing, waiting = row.shares()
    stale = [summary.staleness.mean for summary in summaries if summary.staleness.histogram]
    seconds = statistics.fmean(summary.wall_s for summary in summaries) / epochs
    megabytes = statistics.fmean(summary.bytes_sent for summary in summaries) / 1e6
    cells += [f"{row.final:.4f}", f"{seconds:.2f}", f"{computing:.1%}", f"{waiting:.1%}"]
    return [*cells, f"{statistics.fmean(stale):.2f}" if stale else "", f"{megabytes:,.0f}"]


def _notes(best: SimulatedRow, targets: Sequence[TimeToTarget]) -> list[str]:
    margins = ", ".join(f"{target.margin:g}" for target in targets)
    notes = [
        f"Virtual seconds until the held-out log-prob is the final one of {best.name} less "
        f"{margins}; speed-ups are over its time to the same log-prob. never (x): the highest "
        "log-prob was x. Shares are of the learners' time."
    ]
    if len(best.runs) > 1:
        notes.append(
            f"In brackets: {LEVEL:.0%} intervals, Student's t over {len(best.runs)} seeds."
        )
    return notes
