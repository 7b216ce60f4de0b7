"""How often models are averaged: held-out log-prob and word error rate of each pace.

    python benchmarks/averaging_frequency.py PREP TEST --hosts FILE.toml --out DIR [--seeds 3]
        [--every 256 4096 16384 65536] [--set key=value]...

trains solo and `averaging` at each pace (examples of a learner between two averages) on a simulated
cluster, with real gradients, decodes TEST with each model, and prints log-prob, word error rate,
the differences of both to solo seed by seed, and virtual time, with Student's interval over the
seeds (90%). Acoustic scale and word insertion penalty are tuned for each model on the held-out
speakers. What is done in DIR stays done.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from unisono.report.comparison import align
from unisono.report.statistics import estimate
from unisono.runs.directory import RunDirectory
from unisono.simulation.hosts import read_hosts
from unisono.training.decode import DecodeOptions, decode
from unisono.training.simulate import Simulate
from unisono.training.simulation_plan import Simulation, plan_simulation

HEADS = ["", "held-out log-prob", "word errors, %", "log-prob - solo", "errors - solo", "virtual s"]


class Model(NamedTuple):
    """What a trained model came to: log-prob, word errors in percent, virtual seconds."""

    logprob: float
    errors: float
    seconds: float


Measured = dict[int, Model]
"""By seed."""


def cell(values: list[float], digits: int, sign: str = "") -> str:
    """A mean, and its interval if there is one."""
    found = estimate(values)
    form = f"{sign}.{digits}f"
    text = f"{found.mean:{form}}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({found.low:{form}}..{found.high:{form}})"


def row_of(name: str, mine: Measured, solo: Measured) -> list[str]:
    """A row of the table; differences are of the seeds that both have."""
    if not mine:
        return [name, "diverged"]
    both = [(mine[seed], solo[seed]) for seed in mine if seed in solo]
    logprobs, errors, seconds = (list(column) for column in zip(*mine.values(), strict=True))
    cells = [name, cell(logprobs, 3), cell(errors, 1), f"{estimate(seconds).mean:.1f}"]
    if mine is solo or not both:
        return [*cells[:3], "", "", cells[3]]
    gain = cell([a.logprob - b.logprob for a, b in both], 3, "+")
    more = cell([a.errors - b.errors for a, b in both], 1, "+")
    return [*cells[:3], gain, more, cells[3]]


def main() -> None:
    """Trains and decodes what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prep", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--hosts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--every", type=int, nargs="+", default=[256, 4096, 16384, 65536])
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    hosts = read_hosts(options.hosts)
    strategies = ",".join(f"averaging:every={every}" for every in options.every)
    plan = plan_simulation(
        options.prep.resolve(),
        strategies,
        hosts.learners,
        options.seeds,
        options.epochs,
        options.set,
    )
    runs = options.out / "runs"
    simulation = Simulation(plan=plan, out=runs, hosts=hosts, slow={}, say=print)
    Simulate(simulation).run()
    measured: list[Measured] = []
    for variant in plan.variants:
        measured.append({})
        for seed in plan.seeds:
            path = simulation.job(variant, seed).path
            summary = RunDirectory(path).read_summary()
            if summary is None or summary.validation_logprob is None:
                continue
            decoded = options.out / f"decoded-{path.name}"
            if not (decoded / "score.json").is_file():
                decode(path, options.test, decoded, DecodeOptions(processes=2), print)
            errors = 100 * json.loads((decoded / "score.json").read_text())["wer"]
            measured[-1][seed] = Model(summary.validation_logprob, errors, summary.wall_s)
    table = [HEADS]
    for variant, mine in zip(plan.variants, measured, strict=True):
        table.append(row_of(variant.name, mine, measured[0]))
    print("\n".join(align(table)))


if __name__ == "__main__":
    main()
