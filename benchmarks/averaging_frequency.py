"""How often models are averaged: held-out log-prob and word error rate of each pace.

    python benchmarks/averaging_frequency.py PREP TEST --hosts FILE.toml --out DIR [--seeds 3]
        [--every 256 4096 16384 65536] [--set key=value]...

trains solo and `averaging` at each pace (examples of a learner between two averages) on a simulated
cluster, with real gradients, decodes TEST with each model, and prints log-prob, word error rate and
virtual time, with Student's interval over the seeds (90%). Acoustic scale and word insertion
penalty are tuned for each model on the held-out speakers. What is done in DIR stays done.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from unisono.report.statistics import estimate
from unisono.runs.directory import RunDirectory
from unisono.simulation.hosts import read_hosts
from unisono.training.decode import DecodeOptions, decode
from unisono.training.simulate import Simulate
from unisono.training.simulation_plan import Simulation, plan_simulation


def cell(values: list[float], digits: int) -> str:
    """A mean, and its interval if there is one."""
    found = estimate(values)
    text = f"{found.mean:.{digits}f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({found.low:.{digits}f}..{found.high:.{digits}f})"


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
    rows = [f"{'':24}{'held-out log-prob':>30}{'word errors':>26}{'virtual s':>11}"]
    for variant in plan.variants:
        logprobs, rates, seconds = [], [], []
        for seed in plan.seeds:
            path = simulation.job(variant, seed).path
            summary = RunDirectory(path).read_summary()
            if summary is None or summary.validation_logprob is None:
                continue
            decoded = options.out / f"decoded-{path.name}"
            if not (decoded / "score.json").is_file():
                decode(path, options.test, decoded, DecodeOptions(processes=2), print)
            logprobs.append(summary.validation_logprob)
            rates.append(100 * json.loads((decoded / "score.json").read_text())["wer"])
            seconds.append(summary.wall_s)
        if logprobs:
            rows.append(
                f"{variant.name:24}{cell(logprobs, 3):>30}{cell(rates, 1) + ' %':>26}"
                f"{estimate(seconds).mean:>11.1f}"
            )
        else:
            rows.append(f"{variant.name:24}{'diverged':>30}")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
