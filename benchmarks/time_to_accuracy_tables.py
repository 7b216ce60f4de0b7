"""Table, figures and picture of ``benchmarks/time_to_accuracy.py``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unisono.report.charts import Line, Look
from unisono.report.comparison import align, interval, time_of
from unisono.report.learning_section import time_axes
from unisono.report.picture import picture_of
from unisono.report.statistics import LEVEL
from unisono.report.time_to_target import Ceiling, Curve, TimeToTarget, time_to_target
from unisono.runs.directory import write_atomically

MARGINS = (0.02, 0.05, 0.1)


@dataclass
class Finished:
    """What came of one run. A run that diverged has no points."""

    name: str
    learners: int
    seed: int
    points: list[list[float]] = field(default_factory=list)
    start_up_s: float = 0.0
    wall_s: float = 0.0
    stalled_s: float = 0.0
    examples_per_s: float = 0.0
    accuracy: float | None = None
    diverged: bool = False
    stopped: bool = False
    """Its time was up before its end; the points are those up to then."""
    machine: str = ""

    @classmethod
    def read(cls, file: Path) -> Finished | None:
        """Reads it; None where the run is not done."""
        try:
            return cls(**json.loads(file.read_text()))
        except FileNotFoundError:
            return None

    def write(self, file: Path) -> None:
        """Writes it, whole or not at all."""
        write_atomically(file, json.dumps(asdict(self)).encode())

    @property
    def curve(self) -> Curve:
        """Held-out log-prob against seconds of training."""
        points = [(time, height) for time, height in self.points]
        return Curve(self.seed, self.start_up_s, points, self.stalled_s)

    @property
    def total_s(self) -> float:
        """Seconds of the whole command, but for what comes after the training."""
        return self.start_up_s + self.wall_s


@dataclass(frozen=True)
class Row:
    """The runs of one name and number of learners."""

    name: str
    learners: int
    runs: Sequence[Finished]
    targets: Sequence[TimeToTarget]
    is_best_solo: bool

    @property
    def finished(self) -> list[Finished]:
        """Those that did not diverge."""
        return [run for run in self.runs if not run.diverged]


def judge_rows(done: Sequence[Finished], best_solo: str) -> list[Row]:
    """Rows in the order of the runs, solo first."""
    groups: dict[tuple[int, str], list[Finished]] = {}
    for run in done:
        groups.setdefault((run.learners, run.name), []).append(run)
    solo = [run.curve for run in groups.get((1, best_solo), []) if not run.diverged]
    rows = []
    for (learners, name), runs in sorted(groups.items(), key=lambda item: item[0][0] != 1):
        curves = [run.curve for run in runs if not run.diverged]
        targets = [time_to_target(curves, solo, m) for m in MARGINS] if solo and curves else []
        rows.append(Row(name, learners, runs, targets, learners == 1 and name == best_solo))
    return rows


def share_of(row: Row, ceilings: Mapping[int, Ceiling]) -> float | None:
    """The speed-up to the first target as a share of the ceiling."""
    ceiling = ceilings.get(row.learners)
    if ceiling is None or not row.targets or row.targets[0].speed_up is None:
        return None
    return row.targets[0].speed_up.mean / ceiling.ratio


def table(rows: Sequence[Row], ceilings: Mapping[int, Ceiling]) -> list[str]:
    """The table as lines."""
    targets = next((row.targets for row in rows if row.targets), None)
    if targets is None:
        return ["No solo run is done yet: there is no target."]
    heads = ["run", "learners", "seeds"]
    for target in targets:
        heads += [f"to {target.target:.3f}", "speed-up", f"{LEVEL:.0%}"]
        heads += ["of ceiling"] if target is targets[0] else []
    heads += ["start-up", "trained in", "stalled", "log-prob", "right"]
    cells = [heads]
    for row in rows:
        name = f"{row.name} (best solo)" if row.is_best_solo else row.name
        if not row.finished:
            cells.append([name, f"{row.learners} learners: diverged"])
            continue
        lost = len(row.runs) - len(row.finished)
        seeds = f"{len(row.finished)}" + (f" ({lost} diverged)" if lost else "")
        line = [name, str(row.learners), seeds]
        for target in row.targets:
            speed = "" if target.speed_up is None else f"{target.speed_up.mean:.2f}"
            line += [time_of(target), speed, interval(target.speed_up, 2)]
            if target is row.targets[0]:
                share = share_of(row, ceilings)
                line.append("" if share is None else f"{share:.2f}")
        runs = row.finished
        wall = statistics.fmean(run.wall_s for run in runs)
        stalled = statistics.fmean(run.stalled_s / (run.wall_s * run.learners) for run in runs)
        more = "> " if any(run.stopped for run in runs) else ""
        line += [f"{statistics.fmean(run.start_up_s for run in runs):.1f} s", f"{more}{wall:.1f} s"]
        line += [f"{stalled:.1%}", f"{statistics.fmean(run.curve.final for run in runs):.4f}"]
        right = [run.accuracy for run in runs if run.accuracy is not None]
        line.append(f"{statistics.fmean(right):.2%}" if right else "")
        cells.append(line)
    lines = [*align(cells), ""]
    lines += [ceiling.line() for ceiling in ceilings.values()]
    machines = sorted({run.machine for row in rows for run in row.runs})
    return [
        *lines,
        f"Machine: {'; '.join(machines)}. One thread a learner; times of training only.",
    ]


def results(
    rows: Sequence[Row], ceilings: Mapping[int, Ceiling], runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """All figures, for results.json."""
    table = [
        {
            "name": row.name,
            "learners": row.learners,
            "best_solo": row.is_best_solo,
            "targets": [{**asdict(target), "reached": target.reached} for target in row.targets],
            "share_of_ceiling": share_of(row, ceilings),
        }
        for row in rows
    ]
    return {"rows": table, "ceilings": [asdict(c) for c in ceilings.values()], "runs": list(runs)}


def picture(rows: Sequence[Row]) -> str:
    """Log-prob against time as an SVG file: the best solo run, and those of several learners."""
    drawn = [row for row in rows if row.finished and (row.is_best_solo or row.learners > 1)]
    if not any(row.is_best_solo for row in drawn):
        return ""
    lines: list[Line] = []
    legend: list[tuple[int | None, str]] = []
    for colour, row in enumerate(drawn):
        people = "1 learner" if row.learners == 1 else f"{row.learners} learners"
        legend.append((colour, f"{row.name}, {people}"))
        look = (
            Look.STRONG if row.is_best_solo or row.name in ("default", "averaging") else Look.THIN
        )
        for run in row.finished:
            lines.append(Line(row.name, [list(run.curve.points)], colour, look))
    target = next(row.targets[0].target for row in drawn if row.is_best_solo)
    level = f"best solo less {MARGINS[0]:g}"
    legend.append((None, level))
    x, y, clipped = time_axes(lines, {level: target})
    return picture_of("Held-out log-prob against training time", x, y, clipped, legend)
