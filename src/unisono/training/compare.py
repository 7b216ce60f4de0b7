"""``unisono compare``: the same job once a strategy, a rate and a seed; what is done stays done."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unisono.config import Config
from unisono.data import Part, Prep, halve
from unisono.errors import UserError
from unisono.report.choice import Cell, Row, best_solo, judge
from unisono.report.comparison import Comparison
from unisono.report.comparison_page import render
from unisono.report.outcome import Result, RunOutcome, read_result
from unisono.report.statistics import estimate
from unisono.report.time_to_target import Ceiling
from unisono.runs.directory import write_atomically
from unisono.training.bench import measure_ceiling
from unisono.training.compare_jobs import decode_run, run_jobs
from unisono.training.compare_variants import BASELINE, ComparisonRun, Plan, Variant
from unisono.training.plan_file import planned, settings_of
from unisono.training.rates import rate_factor
from unisono.training.train import check

CEILING = "ceiling.json"


@dataclass(kw_only=True)
class Compare:
    """Runs what is not done yet, and judges.

    Each run is a process of its own, so that one that fails takes nothing with it. A run that an
    interruption left unfinished begins anew: wall-clock is one of the things compared, and a run
    in two pieces has none that means anything.
    """

    plan: Plan
    out: Path
    say: Callable[[str], None]
    at_a_time: int = 1
    """Runs under way together; with more than one, wall-clock tells little."""
    test: Path | None = None
    """Speech to decode with each chosen run."""
    run_jobs: Callable[[Sequence[ComparisonRun], int], Generator[ComparisonRun, None, None]] = (
        run_jobs
    )
    measure_ceiling: Callable[[Config, int], Ceiling] = measure_ceiling

    def run(self) -> Comparison:
        """Everything: runs, compare.json, report.html.

        Raises:
            UserError: bad input, or another comparison's directory.
        """
        jobs = list(self.plan.jobs(self.out))
        for job in jobs:
            check(job.config)
        if self.test is not None and not self.test.exists():
            raise UserError(f"--test {self.test}: there is no such folder or file")
        prep = Prep.open(Path(self.plan.base.prep))
        choosing, reporting = halve(prep.speakers_of(Part.HELDOUT))
        learners = self.plan.base.learner_range[1]
        with planned(self.out, self._settings(), "compare", "comparison"):
            ceiling = self._ceiling(learners)
            rows, best = self._rows(self._results(jobs))
            if self.test is not None:
                rows = [self._decoded(row, self.test) for row in rows]
            comparison = Comparison(
                learners=learners,
                epochs=self.plan.base.epochs,
                seeds=self.plan.seeds,
                rates=self.plan.rates,
                choosing=sorted(choosing),
                reporting=sorted(reporting),
                rows=rows,
                best_solo=best,
                ceiling=ceiling,
            )
            write_atomically(self.out / "compare.json", comparison.to_json(self.out).encode())
            write_atomically(self.out / "report.html", render(comparison).encode())
        return comparison

    def _settings(self) -> dict[str, Any]:
        """All that the runs depend on, by name."""
        plan = self.plan
        return {
            "strategies": [variant.name for variant in plan.variants],
            "rates": list(plan.rates),
            "seeds": list(plan.seeds),
            **settings_of(plan.base),
        }

    def _results(self, jobs: list[ComparisonRun]) -> dict[Path, Result]:
        """What came of each run: read, if it is done; else run."""
        places = {job.path: f"[{number}/{len(jobs)}]" for number, job in enumerate(jobs, start=1)}
        results = {job.path: read_result(job.path, job.seed) for job in jobs}
        to_do = [job for job in jobs if results[job.path].ended is RunOutcome.FAILED]
        for job in jobs:
            if job not in to_do:
                self._tell(job, results[job.path], places[job.path], " (done before)")
        with closing(self.run_jobs(to_do, self.at_a_time)) as ended:
            for job in ended:
                results[job.path] = read_result(job.path, job.seed)
                self._tell(job, results[job.path], places[job.path])
        return results

    def _tell(self, job: ComparisonRun, result: Result, place: str, done: str = "") -> None:
        name = f"{place} {job.variant.name}, rate x{job.rate:g}, seed {job.seed}"
        if result.best is None:
            self.say(f"{name}: {result.ended.value}: {result.reason}{done}")
        else:
            best = result.best
            value = f"log-prob {best.choice_logprob:.4f} on the choosing speakers"
            self.say(f"{name}: {value}, best after {best.epoch:g} epochs{done}")

    def _ceiling(self, learners: int) -> Ceiling | None:
        """What so many independent processes do over one; measured once in this directory."""
        if learners == 1:
            return None
        file = self.out / CEILING
        if file.exists():
            return Ceiling(**json.loads(file.read_text()))
        ceiling = self.measure_ceiling(self.plan.base, learners)
        write_atomically(file, json.dumps(asdict(ceiling)).encode())
        self.say(ceiling.line())
        return ceiling

    def _rows(self, results: dict[Path, Result]) -> tuple[list[Row], str]:
        """All rows, and the name of the best solo one, which the others are compared with."""
        grids = {variant: self._grid(variant, results) for variant in self.plan.variants}
        learners = {
            variant: self.plan.job(
                self.out, variant, self.plan.rates[0], self.plan.seeds[0]
            ).config.learner_range[1]
            for variant in grids
        }
        alone = [
            judge(variant.name, 1, grid, None)
            for variant, grid in grids.items()
            if variant.strategy == BASELINE
        ]
        best = best_solo(alone)
        rows = [
            best
            if best is not None and variant.name == best.name
            else judge(variant.name, learners[variant], grid, best or alone[0])
            for variant, grid in grids.items()
        ]
        return rows, (best or alone[0]).name

    def _grid(self, variant: Variant, results: dict[Path, Result]) -> list[Cell]:
        cells = []
        for rate in self.plan.rates:
            jobs = [self.plan.job(self.out, variant, rate, seed) for seed in self.plan.seeds]
            config = jobs[0].config
            learning_rate = config.start_rate * rate_factor(config)
            cells.append(Cell(rate, learning_rate, [results[job.path] for job in jobs]))
        return cells

    def _decoded(self, row: Row, test: Path) -> Row:
        """A row with the word errors of its chosen runs."""
        rates = []
        for result in row.chosen.results if row.chosen is not None else ():
            rate = decode_run(result.run, test)
            if rate is None:
                self.say(f"{row.name}, seed {result.seed}: not decoded; see {result.run}/logs")
                return row
            self.say(f"{row.name}, seed {result.seed}: {rate:.2%} word errors")
            rates.append(rate)
        return replace(row, word_errors=estimate(rates)) if rates else row
