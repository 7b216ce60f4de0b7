"""How fast clusters are simulated where only time is: learner-steps a second of one core.

    python benchmarks/simulation_speed.py [--learners N,N,...] [--strategies A,B,...] [--steps N]

Each row is a process of its own. Seconds are of its CPU, from the first learner joining to the last
one leaving; memory is the most that it had beyond an empty process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection

from unisono.report.comparison import align
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import time_strategy
from unisono.strategies.registry import make

LEARNERS = "10,100,1000"
STRATEGIES = "gossip-random,gossip-fixed,server,adpsgd,averaging,allreduce"
ROUNDS_OF_ALL = ("averaging", "allreduce", "delay-by-one")
MOST_OF_ALL = 100
"""Learners whose rounds are of all: each sends a part to every other, so a round takes N x N."""
STEPS = 40
"""Minibatches a learner."""
PARAMETERS = 1_000_000
COST_S = 0.1
SPREAD = 0.1


def peak_mb() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def simulate(strategy: str, learners: int, steps: int, result: Connection) -> None:
    """One row, in a process of its own."""
    before, began = peak_mb(), time.process_time()
    hosts = Hosts(
        shared_memory=Link(bandwidth_mbit=30_000.0, latency_ms=0.06),
        network=Link(bandwidth_mbit=10_000.0, latency_ms=0.1),
        host=[HostTable(name=f"host{n}") for n in range(learners)],
    )
    timing = time_strategy(
        make(strategy),
        name=strategy,
        learners=learners,
        minibatches=learners * steps,
        batch_size=256,
        parameters=PARAMETERS,
        prefetch=2,
        cost=COST_S,
        slowness={},
        spread=dict.fromkeys(range(learners), SPREAD),
        network=HostNetwork(hosts),
    )
    assert sum(timing.minibatches) == learners * steps
    result.send((time.process_time() - began, peak_mb() - before, timing.seconds))


def row(strategy: str, learners: int, steps: int) -> list[str]:
    """A line of the table."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=simulate, args=(strategy, learners, steps, theirs))
    process.start()
    theirs.close()
    cpu, memory, seconds = ours.recv()
    process.join()
    total = learners * steps
    speed = f"{total / cpu:,.0f}"
    cells = [f"{total:,}", f"{cpu:.1f}", speed, f"{memory:,.0f}", f"{seconds:.2f}"]
    return [strategy, str(learners), *cells]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", default=LEARNERS)
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    rows = [["strategy", "learners", "steps", "CPU s", "steps/s", "MB", "virtual s"]]
    for strategy in given.strategies.split(","):
        for learners in map(int, given.learners.split(",")):
            if learners <= MOST_OF_ALL or strategy not in ROUNDS_OF_ALL:
                rows.append(row(strategy, learners, given.steps))
    print("\n".join(align(rows)))


if __name__ == "__main__":
    main()
