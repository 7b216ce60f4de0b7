"""ADPSGD against all-reduce at the same total batch, as it grows: Cui et al.'s claim.

    python benchmarks/total_batch.py PREP --out DIR [--vary learners | minibatch] [--seeds 3]
        [--totals 1024 2048 4096 8192 16384] [--epochs 3] [--set key=value]...

trains both on a simulated cluster with real gradients, and solo beside them. The total batch is
learners x minibatch:

    --vary learners     minibatches of 256 frames; rate and warm-up are the shipped defaults, so the
                        rate is in proportion to the learners
    --vary minibatch    8 learners; the rate of one learner is in proportion to its minibatch, and
                        the warm-up is the first epoch

Prints held-out log-probs after the last epoch, their differences seed by seed, the same at the
virtual time when the first of the two has ended, and virtual seconds, with Student's interval over
the seeds (90%). What is done in DIR stays done, with the costs of a minibatch that were measured at
first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from unisono.config import DEFAULT_RATES, Config, OptimizerChoice, load
from unisono.data import Part
from unisono.report.comparison import align
from unisono.report.outcome import RunOutcome, read_result
from unisono.report.statistics import estimate
from unisono.report.time_to_target import Curve, read_curve
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.training.builders import Examples
from unisono.training.costs import minibatch_seconds
from unisono.training.simulated_run import simulate_run

STRATEGIES = ("allreduce", "adpsgd")
MINIBATCH = 256
LEARNERS = 8
HEADS = [
    *("total", "learners x minibatch", *STRATEGIES, "adpsgd - allreduce"),
    *("the same at equal time", "virtual s"),
]


def keys_of(vary: str, total: int) -> list[str]:
    """What a total batch sets."""
    if vary == "learners":
        return [f"learners={total // MINIBATCH}"]
    minibatch = total // LEARNERS
    rate = DEFAULT_RATES[OptimizerChoice.NG_SGD] * minibatch / MINIBATCH
    return [
        *(f"learners={LEARNERS}", f"minibatch={minibatch}"),
        *(f"rate.start={rate!r}", "rate.warmup=1"),
    ]


def cell(values: list[float]) -> str:
    """A mean, and its interval if there is one."""
    if not values:
        return "diverged"
    found = estimate(values)
    if found.low is None or found.high is None:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} ({found.low:.3f}..{found.high:.3f})"


def logprob_at(curve: Curve, seconds: float) -> float:
    """Of the last validation up to then."""
    return [logprob for time, logprob in curve.points if time <= seconds][-1]


class Runs:
    """Simulated runs, made once."""

    def __init__(self, out: Path) -> None:
        """``out``: their folder."""
        self._out = out
        self._sources: dict[Part, Examples] = {}

    def curve(self, name: str, config: Config) -> Curve | None:
        """Of a run that is made now or was before; None: it diverged."""
        path = self._out / f"{name}-{config.seed}"
        if read_result(path, config.seed).ended is RunOutcome.FAILED:
            path.parent.mkdir(parents=True, exist_ok=True)
            hosts = self._hosts(config)
            slowness = dict.fromkeys(range(hosts.learners), 1.0)
            simulate_run(path, config, hosts, slowness, self._sources)
        if read_result(path, config.seed).ended is not RunOutcome.FINISHED:
            print(f"{name}, seed {config.seed}: diverged", flush=True)
            return None
        curve = read_curve(path, config.seed, "logprob")
        seconds = curve.points[-1][0]
        print(f"{name}, seed {config.seed}: {curve.final:.4f} after {seconds:.1f} virtual s")
        return curve

    def _hosts(self, config: Config) -> Hosts:
        """Equal machines on 10 Gbit/s Ethernet, as in examples/clusters/eight_machines.toml."""
        file = self._out / "minibatch_ms.json"
        costs = json.loads(file.read_text()) if file.is_file() else {}
        name = f"{config.chosen_optimizer.value}, {config.minibatch}"
        if name not in costs:
            costs[name] = round(1000 * minibatch_seconds(config), 4)
            self._out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(costs, indent=1))
        return Hosts(
            minibatch_ms={config.chosen_optimizer: costs[name]},
            shared_memory=Link(bandwidth_mbit=30000.0, latency_ms=0.06),
            network=Link(bandwidth_mbit=10000.0, latency_ms=0.1),
            host=[
                HostTable(name=f"machine-{number}", spread=0.05)
                for number in range(config.first_learners)
            ],
        )


def row_of(total: int, config: Config, pairs: list[tuple[Curve | None, Curve | None]]) -> list[str]:
    """One total batch; ``pairs``: all-reduce and ADPSGD, by seed."""
    whole = [(a, b) for a, b in pairs if a is not None and b is not None]
    ends = [min(a.points[-1][0], b.points[-1][0]) for a, b in whole]
    then = [
        logprob_at(b, end) - logprob_at(a, end) for (a, b), end in zip(whole, ends, strict=True)
    ]
    seconds = [
        f"{estimate([curve.points[-1][0] for curve in curves]).mean:.2f}" if curves else "-"
        for curves in ([a for a, _ in pairs if a], [b for _, b in pairs if b])
    ]
    return [
        f"{total:,}",
        f"{config.first_learners} x {config.minibatch}",
        cell([a.final for a, _ in pairs if a]),
        cell([b.final for _, b in pairs if b]),
        cell([b.final - a.final for a, b in whole]),
        cell(then),
        ", ".join(seconds),
    ]


def main() -> None:
    """Trains what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vary", choices=("learners", "minibatch"), default="learners")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--totals", type=int, nargs="+", default=[1 << n for n in range(10, 15)])
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    runs = Runs(options.out)
    everywhere = ["device=cpu", "threads=1", "rate.retries=0", "validation.halves=true"]
    everywhere += [f"epochs={options.epochs}"]

    def configured(strategy: str, seed: int, keys: list[str]) -> Config:
        sets = [*everywhere, *options.set, *keys, f"strategy.name={strategy}", f"seed={seed}"]
        return load(None, sets, {"prep": str(options.prep.resolve())})

    solo = []
    pairs: dict[int, list[tuple[Curve | None, Curve | None]]] = {t: [] for t in options.totals}
    for seed in range(options.seeds):
        solo.append(runs.curve("solo", configured("solo", seed, [])))
        for total in options.totals:
            keys = keys_of(options.vary, total)
            allreduce, adpsgd = (
                runs.curve(f"{options.vary}/{total}-{name}", configured(name, seed, keys))
                for name in STRATEGIES
            )
            pairs[total].append((allreduce, adpsgd))
    table = [HEADS]
    for total, found in pairs.items():
        config = configured("adpsgd", 0, keys_of(options.vary, total))
        table.append(row_of(total, config, found))
    print("\n".join(align(table)))
    alone = [curve for curve in solo if curve is not None]
    seconds = estimate([curve.points[-1][0] for curve in alone]).mean
    print(f"solo, minibatches of {MINIBATCH}: {cell([c.final for c in alone])}, {seconds:.2f} s")


if __name__ == "__main__":
    main()
