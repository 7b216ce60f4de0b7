"""Does averaging lose with SGD and hold with NG-SGD? Both on AN4 frames, each against its own solo.

    python benchmarks/an4_natural_gradient.py FRAMES.npz --out DIR --processes 16 [--limit 340]

trains {sgd, ng-sgd} x {1 learner, 4 learners that average every 16, 64 and 200 minibatches}, all on
the same number of frames: 440 -> 128 -> 128 -> 790, minibatch 128, 10 epochs, so 22 rounds where
200 minibatches lie between two. Momentum 0, as Kaldi has it; the learning rate falls to a tenth
in data seen. Every arm gets the same grid of learning rates (of one learner's own steps, not
multiplied by anything) with the first seed; the rate that is best on one half of the held-out
speakers is then trained with all seeds, and the other half is reported: log-prob a frame, and what
is lost against the same optimizer's own solo with the same seed, with Student's 90% interval.

DIR gets `runs.jsonl`, a line a finished training with its curve, as they end; table.txt and
curves.html. No training begins after `limit` seconds, and none goes on for long after it; the table
is made of what there is. What `runs.jsonl` has already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from unisono.data import convert_frames
from unisono.report.axes import Quantity, make_axis
from unisono.report.charts import Line, colour_of, line_chart
from unisono.report.page import charts, legend, page
from unisono.report.statistics import estimate

OPTIMIZERS = ("sgd", "ng-sgd")
ROUNDS = (0, 16, 64, 200)
"""Minibatches of a learner between two averages; 0: one learner."""
RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
MINIBATCH = 128
COMMON = (
    "device=cpu",
    "threads=1",
    f"minibatch={MINIBATCH}",
    "network.hidden=[128,128]",
    "rate.momentum=0.0",
    "rate.scaled=false",
    "validation.halves=true",
    "validation.every=250000",
    "checkpoint.keep=1",
)
GRACE_S = 30.0
"""Seconds after the limit in which a training may still end."""


@dataclass(frozen=True)
class Arm:
    """A row of the table."""

    optimizer: str
    rounds: int

    @property
    def learners(self) -> int:
        """How many."""
        return 4 if self.rounds else 1

    @property
    def name(self) -> str:
        """For people."""
        pace = f"4 learners, every {self.rounds}" if self.rounds else "1 learner"
        return f"{self.optimizer}, {pace}"

    def sets(self) -> list[str]:
        """Its keys."""
        sets = [f"optimizer={self.optimizer}", f"learners={self.learners}"]
        if self.rounds:
            sets += ["strategy.name=averaging", f"strategy.every={self.rounds * MINIBATCH}"]
        return sets


@dataclass(frozen=True)
class Run:
    """A training; without figures, if it did not come to its end."""

    optimizer: str
    rounds: int
    rate: float
    seed: int
    choice: float | None = None
    report: float | None = None
    train: float | None = None
    averages: int = 0
    wall_s: float = 0.0
    finished: bool = False
    """Also of one that diverged; not of one that there was no time for."""
    curve: Sequence[Sequence[float]] = ()
    """Examples seen, and log-prob a frame of the reported half."""

    @property
    def job(self) -> tuple[str, int, float, int]:
        """Which training it was."""
        return self.optimizer, self.rounds, self.rate, self.seed


class SlotPool:
    """So many processes at a time; a training of four learners takes four places."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Waits for places."""
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count

    def give(self, count: int) -> None:
        """Gives them back."""
        with self._changed:
            self._free += count
            self._changed.notify_all()


class Trainings:
    """Runs trainings beside each other, and keeps what they gave."""

    def __init__(self, prep: Path, out: Path, options: argparse.Namespace) -> None:
        self._prep, self._out = prep, out
        self._epochs, self._sets = options.epochs, options.set
        self._slots = SlotPool(options.processes)
        self._ends = time.monotonic() + options.limit
        self._lock = threading.Lock()
        self._file = out / "runs.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.done = [Run(**json.loads(line)) for line in lines]

    def run(self, arm: Arm, rate: float, seed: int) -> Run | None:
        """One training; None if there was no time for it."""
        wanted = Run(arm.optimizer, arm.rounds, rate, seed)
        with self._lock:
            before = next((run for run in self.done if run.job == wanted.job), None)
        if before is not None:
            return before
        self._slots.take(arm.learners)
        try:
            left = self._ends - time.monotonic()
            if left <= 0:
                return None
            run = self._train(arm, rate, seed, left + GRACE_S)
        finally:
            self._slots.give(arm.learners)
        with self._lock:
            self.done.append(run)
            if run.finished:
                with self._file.open("a") as file:
                    file.write(json.dumps(asdict(run)) + "\n")
            said = "failed" if run.report is None else f"{run.report:.4f}"
            print(f"{arm.name:28} rate {rate:g} seed {seed}: {said} {run.wall_s:.0f} s", flush=True)
        return run

    def _train(self, arm: Arm, rate: float, seed: int, timeout: float) -> Run:
        began = time.monotonic()
        path = self._out / "runs" / f"{arm.name}-{rate:g}-{seed}".replace(", ", "-")
        sets = [*COMMON, *arm.sets(), f"rate.start={rate}", f"seed={seed}"]
        sets += [f"epochs={self._epochs}", *self._sets]
        command = [sys.executable, "-m", "unisono", "train", str(self._prep), "--out", str(path)]
        for text in sets:
            command += ["--set", text]
        run = Run(arm.optimizer, arm.rounds, rate, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)  # of a training that was broken off
        with path.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its learners, too
                process.wait()
                return run
        wall = time.monotonic() - began
        if code != 0:
            return replace(run, wall_s=wall, finished=True)
        summary = json.loads((path / "summary.json").read_text())
        events = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        checks = [e for e in events if e["event"] == "validation"]
        return replace(
            run,
            choice=checks[-1]["choice_logprob"],
            report=checks[-1]["report_logprob"],
            train=summary["train_logprob"],
            averages=summary["rounds"],
            wall_s=wall,
            finished=True,
            curve=[[e["global_examples"], e["report_logprob"]] for e in checks],
        )


def study(trainings: Trainings, arm: Arm, seeds: Sequence[int], rates: Sequence[float]) -> None:
    """The grid with the first seed, then the best rate with the others."""
    with ThreadPoolExecutor(max(len(rates), len(seeds))) as pool:
        grid: list[Future[Run | None]] = [
            pool.submit(trainings.run, arm, rate, seeds[0]) for rate in rates
        ]
        found = [run for future in grid if (run := future.result()) and run.choice is not None]
        if found:
            best = best_rate(found)
            for future in [pool.submit(trainings.run, arm, best, seed) for seed in seeds[1:]]:
                future.result()


def best_rate(runs: Sequence[Run]) -> float:
    """Of one arm, by the half that is for choosing."""
    return max(runs, key=lambda run: run.choice or -1e9).rate


def table(runs: Sequence[Run], seeds: Sequence[int]) -> list[str]:
    """The grid, then the comparison."""
    lines = [f"{'held out, first seed, by rate':30}" + "".join(f"{r:>10g}" for r in RATES)]
    chosen: dict[Arm, dict[int, Run]] = {}
    for arm in arms():
        mine = [r for r in runs if (r.optimizer, r.rounds) == (arm.optimizer, arm.rounds)]
        first = {r.rate: r for r in mine if r.seed == seeds[0] and r.choice is not None}
        cells = [f"{first[r].choice:10.4f}" if r in first else f"{'-':>10}" for r in RATES]
        lines.append(f"{arm.name:30}" + "".join(cells))
        if first:
            rate = best_rate(list(first.values()))
            chosen[arm] = {r.seed: r for r in mine if r.rate == rate and r.report is not None}
    head = ("rate", "log-prob", "train", "lost to own solo", "90% interval", "rounds", "seeds")
    lines += ["", "{:30} {:>5} {:>9} {:>9} {:>17} {:>20} {:>7} {:>6}".format("", *head)]
    lines += [_row(arm, done, chosen) for arm, done in chosen.items()]
    return lines


def _row(arm: Arm, done: dict[int, Run], chosen: dict[Arm, dict[int, Run]]) -> str:
    solo = chosen.get(Arm(arm.optimizer, 0), {})
    held = estimate([r.report or 0.0 for r in done.values()])
    train = estimate([r.train or 0.0 for r in done.values()])
    both = [seed for seed in done if seed in solo]
    one = next(iter(done.values()))
    row = f"{arm.name:30} {one.rate:5g} {held.mean:9.4f} {train.mean:9.4f}"
    if arm.rounds == 0 or not both:
        return f"{row} {'':>17} {'':>20} {one.averages:7} {len(done):6}"
    lost = estimate([(solo[s].report or 0.0) - (done[s].report or 0.0) for s in both])
    reach = "" if lost.low is None else f"{lost.low:+.4f} to {lost.high:+.4f}"
    return f"{row} {lost.mean:+17.4f} {reach:>20} {one.averages:7} {len(both):6}"


def arms() -> list[Arm]:
    """Those of one learner first: they take longest."""
    return [Arm(optimizer, rounds) for rounds in ROUNDS for optimizer in OPTIMIZERS]


def curves(runs: Sequence[Run], seeds: Sequence[int]) -> str:
    """A page: log-prob against examples, the mean over the seeds of each arm."""
    lines = []
    for place, arm in enumerate(arms()):
        mine = [r for r in runs if (r.optimizer, r.rounds) == (arm.optimizer, arm.rounds)]
        grid = [r for r in mine if r.seed == seeds[0] and r.choice is not None]
        if not grid:
            continue
        rate = best_rate(grid)
        each = [r.curve for r in mine if r.rate == rate and r.report is not None]
        count = min(len(curve) for curve in each)
        points = [
            (each[0][i][0], sum(curve[i][1] for curve in each) / len(each)) for i in range(count)
        ]
        lines.append(Line(arm.name, [points], colour=place, dots=True))
    seen = [point for line in lines for point in line.curve[0]]
    x = make_axis("examples", [p[0] for p in seen], Quantity.COUNT, zero=True)
    y = make_axis("held-out log-prob a frame", [p[1] for p in seen], Quantity.NUMBER)
    chart = line_chart("AN4 frames: log-prob against examples", x, y, lines)
    names = legend([("", colour_of(line.colour), line.name) for line in lines])
    return page("Averaging and natural gradient", [names, charts([chart])])


def main() -> None:
    """Trains and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2, help="learners at a time")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds to begin trainings in")
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prep = options.out / "prep"
    if not prep.exists():
        convert_frames(options.frames, prep)
    seeds = range(options.seeds)
    trainings = Trainings(prep, options.out, options)
    every = arms()
    with ThreadPoolExecutor(len(every)) as pool:
        for future in [pool.submit(study, trainings, arm, seeds, RATES) for arm in every]:
            future.result()
    lines = table(trainings.done, seeds)
    (options.out / "table.txt").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))
    (options.out / "curves.html").write_text(curves(trainings.done, seeds))


if __name__ == "__main__":
    main()
