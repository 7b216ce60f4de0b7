"""Prediction against truth: how well simulated clusters predict real runs.

    python benchmarks/simulation.py [--calibrate RUN]... [RUN]... [--prep PREP] [--links]

Costs are taken from the runs of --calibrate (of one machine, with different numbers of learners);
the time of every other run is predicted from them and printed beside its own, and whether the
strategies come in the same order. With --prep each run is also simulated with real gradients, for
its final log-prob: that takes as long as training on one core. --links predicts the emulated hosts
of benchmarks/results/hosts.txt from the speed of their independent learners.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from unisono.config import Config
from unisono.models import build, find
from unisono.report.comparison import align
from unisono.runs.directory import RunDirectory
from unisono.runs.summary import Summary
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import time_strategy
from unisono.strategies.base import Strategy
from unisono.strategies.registry import make
from unisono.training.builders import strategy_of
from unisono.training.calibrate import Costs, calibrate
from unisono.training.simulated_run import simulate_run

HOSTS_TABLE = Path(__file__).parent / "results" / "hosts.txt"
SAME = 0.05
"""Real times that differ by less are in no order."""
HOSTS_PARAMETERS = 769_174
HOSTS_MEMORY = Link(bandwidth_mbit=8000.0, latency_ms=0.2)
"""What sending takes of a core: docs/evidence/network.md, about a second for a GB."""
ROUNDS, COUNTED = 6, (2, 5)
LEAST_ROUND = 8


@dataclass(frozen=True)
class RealRun:
    """A finished run."""

    path: Path
    config: Config
    summary: Summary

    @classmethod
    def read(cls, path: Path) -> RealRun:
        """Of a directory; a pace that was noted while it ran is chosen anew in the simulation."""
        run = RunDirectory(path)
        config, summary = run.read_config(), run.read_summary()
        if summary is None:
            raise SystemExit(f"{path} has not finished")
        strategy = dict(config.strategy)
        if str(strategy.get("every", "")).startswith("0:"):
            strategy["every"] = "auto"
        return cls(path, config.model_copy(update={"strategy": strategy}), summary)

    @property
    def strategy(self) -> str:
        """With its sharding."""
        sharding = self.config.strategy.get("sharding", "")
        return f"{self.config.strategy_name} {sharding}".strip()

    def hosts(self, costs: Costs) -> Hosts:
        """The machine with as many learners."""
        host = HostTable(
            name="machine", learners=self.config.first_learners, contention=costs.contention
        )
        return Hosts(
            minibatch_ms=costs.minibatch_ms, shared_memory=costs.shared_memory, host=[host]
        )


def parameters_of(run: RealRun) -> int:
    """Numbers in the model that a run trained."""
    told = json.loads((run.path / "model.json").read_text())
    keys = ["inputs", "outputs", *find(told["model"]).options]
    model = build(told["model"], seed=0, **{key: told[key] for key in keys})
    return sum(p.numel() for p in model.parameters())


def predicted_seconds(run: RealRun, costs: Costs, parameters: int) -> float:
    """Of the whole training."""
    hosts, config = run.hosts(costs), run.config
    learners = hosts.learners
    return time_strategy(
        strategy_of(config),
        name=run.strategy,
        learners=learners,
        minibatches=run.summary.minibatches.committed,
        batch_size=config.minibatch,
        parameters=parameters,
        prefetch=config.prefetch,
        cost=costs.minibatch_ms[config.chosen_optimizer] / 1000,
        slowness=dict.fromkeys(range(learners), hosts.host[0].slowness),
        spread={},
        network=HostNetwork(hosts),
    ).seconds


def predicted_logprob(run: RealRun, costs: Costs, prep: Path) -> float | None:
    """The final one, with real gradients; None: it diverged."""
    hosts = run.hosts(costs)
    config = run.config.model_copy(update={"prep": str(prep), "threads": 1})
    slowness = dict.fromkeys(range(hosts.learners), hosts.host[0].slowness)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        simulate_run(path, config, hosts, slowness, {})
        summary = RunDirectory(path).read_summary()
    return None if summary is None else summary.validation_logprob


def runs_table(calibrated: list[RealRun], others: list[RealRun], prep: Path | None) -> list[str]:
    """Every run's time as it was and as predicted, and whether the order is right."""
    costs = calibrate([run.path for run in calibrated], calibrated[0].config)
    assert costs.shared_memory is not None, "no run of --calibrate has rounds of everybody"
    parameters = parameters_of(calibrated[0])
    minibatch = ", ".join(f"{name.value} {ms:.2f} ms" for name, ms in costs.minibatch_ms.items())
    lines = [
        f"calibrated on {', '.join(run.path.name for run in calibrated)}: a minibatch {minibatch}, "
        f"contention {costs.contention:.3f}, shared memory "
        f"{costs.shared_memory.bandwidth_mbit:,.0f} Mbit/s",
        "",
    ]
    heads = ["run", "strategy", "learners", "real s", "predicted s", "error"]
    cells = [[*heads, "log-prob", "predicted", "difference"] if prep else heads]
    seconds: list[tuple[RealRun, float]] = []
    for run in [*calibrated, *others]:
        if run.config.chosen_optimizer not in costs.minibatch_ms:
            continue
        found = predicted_seconds(run, costs, parameters)
        real = run.summary.wall_s
        name = run.path.name + (" (calibrated on)" if run in calibrated else "")
        row = [name, run.strategy, f"{run.config.first_learners}", f"{real:.1f}"]
        row += [f"{found:.1f}", f"{found / real - 1:+.0%}"]
        if run not in calibrated:
            seconds.append((run, found))
        if prep:
            row += _logprobs(run, predicted_logprob(run, costs, prep))
        cells.append(row)
    errors = [abs(found / run.summary.wall_s - 1) for run, found in seconds]
    lines += [*align(cells), ""]
    lines.append(
        f"error of the {len(errors)} runs that were not calibrated on: mean "
        f"{statistics.fmean(errors):.1%}, greatest {max(errors):.1%}"
    )
    return [*lines, order(seconds)]


def _logprobs(run: RealRun, found: float | None) -> list[str]:
    real = run.summary.validation_logprob
    if real is None or found is None:
        return ["", "", ""]
    return [f"{real:.4f}", f"{found:.4f}", f"{found - real:+.4f}"]


def order(seconds: list[tuple[RealRun, float]]) -> str:
    """How many pairs of strategies with equally many learners are in the right order."""
    right, pairs, wrong = 0, 0, []
    for (one, first), (other, second) in itertools.combinations(seconds, 2):
        same = one.config.first_learners == other.config.first_learners
        ratio = one.summary.wall_s / other.summary.wall_s
        if not same or one.strategy == other.strategy or abs(ratio - 1) < SAME:
            continue
        pairs += 1
        if (ratio > 1) == (first > second):
            right += 1
        else:
            wrong.append(f"{one.path.name} and {other.path.name}")
    but = f"; wrong: {', '.join(wrong)}" if wrong else ""
    return f"order of strategies: {right} of {pairs} pairs over {SAME:.0%} apart are right{but}"


def links_table() -> list[str]:
    """The ratio of each strategy to independent learners, as measured and as predicted."""
    cells = [["Mbit/s", "strategy", "every", "precision", "measured", "predicted", "difference"]]
    differences: dict[bool, list[float]] = {True: [], False: []}
    blocks = HOSTS_TABLE.read_text().split("\ncables of ")[1:]
    for block in blocks:
        head, _, *rows = block.splitlines()
        if "there and back" in head:  # latency in a switch of its own
            continue
        mbit = float(head.split()[0])
        steps = re.search(r"(\d+) steps/s", head)
        assert steps is not None
        for words in itertools.takewhile(lambda row: len(row) > 5, map(str.split, rows)):
            name, every, precision, measured = words[0], int(words[1]), words[2], float(words[3])
            found = predicted_ratio(name, every, precision, mbit, 4 / float(steps[1]))
            waits = name in ("averaging", "allreduce", "delay-by-one")
            differences[waits].append(found - measured)
            row = [f"{mbit:g}", name, f"{every}", precision, f"{measured:.2f}", f"{found:.2f}"]
            cells.append([*row, f"{found - measured:+.2f}"])
    means = [
        f"{statistics.fmean(d):+.2f} ({min(d):+.2f} to {max(d):+.2f})" for d in differences.values()
    ]
    return [
        *align(cells),
        "",
        f"difference, strategies that wait for each round: mean {means[0]}; strategies that "
        f"exchange while they compute: mean {means[1]}",
    ]


def predicted_ratio(name: str, every: int, precision: str, mbit: float, cost: float) -> float:
    """Of four learners on four hosts, to four that share nothing."""
    options: dict[str, object] = {"precision": precision}
    if name.startswith("averaging"):  # the table calls sharding=dynamic "drawn"
        options["sharding"] = "dynamic" if name == "averaging-drawn" else "static"
        name = "averaging"
    if name == "server":
        options = {}
    elif name not in ("allreduce", "delay-by-one"):
        options["every"] = every
    link = Link(bandwidth_mbit=mbit, latency_ms=0.1)
    four = [HostTable(name=f"host-{number}") for number in range(4)]
    hosts = Hosts(shared_memory=HOSTS_MEMORY, network=link, host=four)
    pace = max(LEAST_ROUND, every // 256)
    return cost / 4 / steady_seconds(make(name, options), hosts, HOSTS_PARAMETERS, cost, pace)


def steady_seconds(
    strategy: Strategy, hosts: Hosts, parameters: int, cost: float, pace: int, batch_size: int = 256
) -> float:
    """Seconds of a minibatch of all learners together, in rounds between start and end.

    Args:
        strategy: with its settings.
        hosts: all learners of them take part.
        parameters: of the model.
        cost: seconds of a minibatch at speed 1.
        pace: minibatches of a learner that count as a round.
        batch_size: examples in a minibatch.
    """
    ends: list[float] = []
    round_ = pace * hosts.learners
    time_strategy(
        strategy,
        name="",
        learners=hosts.learners,
        minibatches=ROUNDS * round_,
        batch_size=batch_size,
        parameters=parameters,
        prefetch=4,
        cost=cost,
        slowness={number: host.slowness for number, host in enumerate(hosts.places)},
        spread={number: host.spread for number, host in enumerate(hosts.places)},
        network=HostNetwork(hosts),
        on_compute=lambda _, begin, end: ends.append(end),
    )
    ends.sort()
    first, last = (ends[round_ * number - 1] for number in COUNTED)
    return (last - first) / ((COUNTED[1] - COUNTED[0]) * round_)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, help="finished runs to predict")
    parser.add_argument("--calibrate", action="append", type=Path, default=[], metavar="RUN")
    parser.add_argument("--prep", type=Path, help="predict log-probs, too")
    parser.add_argument("--links", action="store_true", help="predict the emulated hosts")
    args = parser.parse_args()
    if bool(args.runs) != bool(args.calibrate) or not (args.runs or args.links):
        parser.error("give RUN... with --calibrate RUN, or --links")
    if args.runs:
        calibrated = [RealRun.read(path) for path in args.calibrate]
        others = [RealRun.read(path) for path in args.runs if path not in args.calibrate]
        print("\n".join(runs_table(calibrated, others, args.prep)), flush=True)
    if args.links:
        print(
            "\n".join(
                ["", "Four emulated hosts, as in benchmarks/results/hosts.txt", "", *links_table()]
            )
        )


if __name__ == "__main__":
    main()
