"""Averaging in fragments over slow links: peaks of traffic, share of computing and time.

    python benchmarks/fragments.py [--parameters 769174] [--minibatches 2048]

Four machines, simulated with byte counts in place of tensors (as `unisono simulate --timing`):
dynamic averaging every 8192 examples, minibatches of 256 that take 25 ms each, with links of 50 and
of 100 Mbit/s. The model is that of benchmarks/hosts.py. Columns:

    computing   share of the learners' time
    MB          sent by a learner
    in flight   the most MB that a learner had sent and that had not arrived, at any time
    in 1/8      the most MB that a learner sent in any window of an eighth of an interval, until the
                first learner has run out of minibatches; from then on nobody computes any more that
                a round could be spread over
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from unisono.fabric import Precision
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.timing import time_strategy
from unisono.strategies import Averaging
from unisono.strategies.base import Strategy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.traffic import TrafficNetwork

HOSTS, EVERY, MINIBATCH, COST_S = 4, 8192, 256, 0.025
INTERVAL_S = EVERY / MINIBATCH * COST_S
COLUMNS = "{:24} {:>8} {:>10} {:>7} {:>6} {:>10} {:>8}"
STRATEGIES: dict[str, Strategy] = {
    f"{precision.value}, {fragments} fragment{'s' if fragments > 1 else ''}": Averaging(
        every=EVERY, precision=precision, fragments=fragments
    )
    for precision in (Precision.FLOAT32, Precision.INT8)
    for fragments in (1, 4, 8)
}


def row(name: str, strategy: Strategy, mbit: float, parameters: int, minibatches: int) -> str:
    """What a strategy costs on links of that speed."""
    link = Link(bandwidth_mbit=mbit, latency_ms=0.1)
    memory = Link(bandwidth_mbit=1e5, latency_ms=0.01)
    machines = [HostTable(name=f"host-{number}") for number in range(HOSTS)]
    network = TrafficNetwork(Hosts(network=link, shared_memory=memory, host=machines))
    ends: dict[int, float] = {}

    def note(learner: int, began: float, ended: float) -> None:
        ends[learner] = ended

    timing = time_strategy(
        strategy,
        name=name,
        learners=HOSTS,
        minibatches=minibatches,
        batch_size=MINIBATCH,
        parameters=parameters,
        prefetch=2,
        cost=COST_S,
        slowness={},
        spread={},
        network=network,
        on_compute=note,
    )
    return COLUMNS.format(
        name,
        f"{timing.seconds:.2f}",
        f"{timing.computing:.1%}",
        f"{timing.rounds:.0f}",
        f"{timing.bytes_sent / HOSTS / 1e6:.0f}",
        f"{network.most_in_flight() / 1e6:.3f}",
        f"{network.most_in(INTERVAL_S / 8, min(ends.values())) / 1e6:.3f}",
    )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=769174)
    parser.add_argument("--minibatches", type=int, default=2048)
    options = parser.parse_args()
    print(f"4 machines, {options.parameters} parameters, {options.minibatches} minibatches")
    for mbit in (50, 100):
        print(f"\n{mbit} Mbit/s")
        heads = ("averaging", "seconds", "computing", "rounds", "MB", "in flight", "in 1/8")
        print(COLUMNS.format(*heads))
        for name, strategy in STRATEGIES.items():
            print(row(name, strategy, mbit, options.parameters, options.minibatches))


if __name__ == "__main__":
    main()
