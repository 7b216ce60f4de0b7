"""One pass with a running mean against several without: You and Xu's claim, on real speech.

    python benchmarks/one_pass.py FRAMES.npz --out DIR [--seeds 5] [--passes 3] [--jobs 1]

trains with `server` in one pass and in several, and with `averaged-server` in one, at the same
learning rates, and prints held-out log-prob, and for each kind of mean the share of the gain of
several passes that it has in one,

    G = (averaged, 1 pass - plain, 1 pass) / (plain, several passes - plain, 1 pass),

by seed, with Student's interval over the seeds (90%). The rate is chosen on one half of the
held-out speakers, the figures are of the other. What is done in DIR stays done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from unisono.config import DEFAULT_RATES, OptimizerChoice, load
from unisono.data import convert_frames
from unisono.report.choice import Cell, judge
from unisono.report.outcome import Check, RunOutcome, read_result
from unisono.report.statistics import estimate
from unisono.training.compare_jobs import run_jobs
from unisono.training.compare_variants import ComparisonRun, Variant

SETTINGS = ["minibatch=64", "strategy.push=gradient", "strategy.overlap=false", "threads=1"]
"""Many small steps with little delay: with those a server learns in few passes."""
START = DEFAULT_RATES[OptimizerChoice.SGD]
SERVER = Variant("server")
AVERAGED = Variant("averaged-server")


def contenders(passes: int) -> dict[str, tuple[Variant, list[str]]]:
    """What is trained, by name."""
    found = {
        "plain, 1 pass": (SERVER, ["epochs=1"]),
        f"plain, {passes} passes": (SERVER, [f"epochs={passes}"]),
    }
    for schedule in ("constant", "power"):
        for begin in ("0.2", "0.5"):
            sets = ["epochs=1", f"rate.schedule={schedule}", f"strategy.average_from={begin}"]
            found[f"mean from {begin}, {schedule}"] = (AVERAGED, sets)
    return found


def main() -> None:
    """Trains what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rates", default="1", help="multiples of the rate of the rule")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    prep = options.out / "prep"
    if not prep.exists():
        convert_frames(options.frames, prep)
    table: dict[str, dict[float, list[ComparisonRun]]] = {}
    rates = [float(rate) for rate in options.rates.split(",")]
    for name, (variant, sets) in contenders(options.passes).items():
        table[name] = {rate: [] for rate in rates}
        for rate in rates:
            for seed in range(options.seeds):
                keys = [
                    f"strategy.name={variant.name}",
                    f"learners={options.learners}",
                    f"seed={seed}",
                ]
                keys += [f"rate.start={START * rate!r}", "validation.halves=true", *SETTINGS]
                config = load(None, [*keys, *sets, *options.set], {"prep": str(prep.resolve())})
                path = options.out / name / f"{rate:g}" / str(seed)
                table[name][rate].append(ComparisonRun(variant, rate, seed, config, path))
    jobs = [job for cells in table.values() for each in cells.values() for job in each]
    jobs.sort(key=lambda job: job.seed)
    to_do = [job for job in jobs if read_result(job.path, job.seed).ended is RunOutcome.FAILED]
    for number, job in enumerate(run_jobs(to_do, options.jobs), start=1):
        ended = read_result(job.path, job.seed).ended.value
        print(f"[{number}/{len(to_do)}] {job.path}: {ended}", flush=True)
    chosen: dict[str, list[Check]] = {}
    print(f"{options.learners} learners, {options.seeds} seeds, {', '.join(SETTINGS)}")
    for name, grid in table.items():
        cells = [
            Cell(rate, START * rate, [read_result(job.path, job.seed) for job in each])
            for rate, each in grid.items()
        ]
        row = judge(name, options.learners, cells, None)
        if row.chosen is None or row.logprob is None:
            print(f"{name:26} {row.ended.value}: {row.reason}")
            continue
        chosen[name] = row.chosen.checks
        print(f"{name:26} {row.logprob.mean:8.4f}  at rate x{row.chosen.rate:g}")
    first, several = (chosen.get(name) for name in list(table)[:2])
    for name in list(table)[2:]:
        if first and several and name in chosen:
            triples = zip(chosen[name], first, several, strict=True)
            share = [(a.logprob - b.logprob) / (c.logprob - b.logprob) for a, b, c in triples]
            told = estimate(share)
            interval = "" if told.low is None else f" ({told.low:.2f}..{told.high:.2f})"
            print(f"G, {name:23} {told.mean:8.2f}{interval}")


if __name__ == "__main__":
    main()
