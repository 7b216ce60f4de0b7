"""Published timings beside what the simulator says of such clusters: time alone.

    python benchmarks/published_tables.py

What the papers do not tell (how long a minibatch takes, how fast the links are) is estimated; the
estimates are in the code below and in examples/clusters. docs/evidence/simulation.md discusses the
differences.
"""

from __future__ import annotations

from pathlib import Path

from simulation import steady_seconds
from unisono.report.comparison import align
from unisono.simulation.hosts import Hosts, HostTable, Link, read_hosts
from unisono.strategies.registry import make

CLUSTERS = Path(__file__).parents[1] / "examples" / "clusters"
MOST_SYNCHRONOUS = 16
"""GPUs; with more a step of all-reduce has thousands of messages, and takes long to simulate."""
STRAGGLER = 10.0
"""How many times slower one learner is."""


def server_on_four_gpus() -> list[str]:
    """Zhang et al. 2013 in Yu and Deng: 462 -> 5 x 2048 -> 10217, pushes every 4 minibatches."""
    cells = [["ms a minibatch", "speed-up of 4 GPUs", "published"]]
    parameters = 462 * 2048 + 4 * 2048**2 + 2048 * 10217 + 5 * 2048 + 10217
    pcie = Link(bandwidth_mbit=24_000.0, latency_ms=0.1)  # PCIe 3.0 x16 with two GPUs of a card
    hosts = Hosts(shared_memory=pcie, host=[HostTable(name="host", learners=4)])
    for cost in (0.02, 0.04, 0.08, 0.16):
        seconds = steady_seconds(make("server"), hosts, parameters, cost, 8)
        cells.append([f"{1000 * cost:g}", f"{cost / seconds:.2f}", "3.2"])
    return align(cells)


def resident_averaging() -> list[str]:
    """Rosciszewski and Kaliski 2017: two workstations of 4 GPUs, 600,000 frames an iteration."""
    hosts = read_hosts(CLUSTERS / "two_workstations.toml")
    cells = [["frames a learner", "time of a round over computing", "published"]]
    for frames in (75_000, 150_000, 600_000):
        pace = frames // 1024
        strategy = make("averaging", {"every": pace * 1024, "sharding": "static"})
        seconds = steady_seconds(strategy, hosts, 22_000_000, 0.051, pace, 1024)
        share = seconds * hosts.learners / 0.051 - 1
        cells.append([f"{frames:,}", f"{share:.1%}", "54.9% saved"])
    return align(cells)


def averaging_on_gpus() -> list[str]:
    """Su and Chen 2015: averaging of natural-gradient models on 16 and 32 GPUs, 300 h."""
    cells = [["GPUs", "every ... minibatches", "speed-up", "published"]]
    link = Link(bandwidth_mbit=40_000.0, latency_ms=0.02)  # InfiniBand QDR
    pcie = Link(bandwidth_mbit=40_000.0, latency_ms=0.1)
    for count, published in ((16, "9.3"), (32, "17")):
        four = [HostTable(name=f"h-{n}", learners=4, spread=0.03) for n in range(count // 4)]
        hosts = Hosts(shared_memory=pcie, network=link, host=four)
        for pace in (8, 16, 64):
            strategy = make("averaging", {"every": pace * 256, "sharding": "static"})
            seconds = steady_seconds(strategy, hosts, 46_000_000, 0.064, pace)
            cells.append([f"{count}", f"{pace}", f"{0.064 / seconds:.1f}", published])
    return align(cells)


def adpsgd_and_allreduce() -> list[str]:
    """Cui et al.: 16 epochs of 1,975 h on 16, 64 and 128 GPUs, with and without a straggler."""
    whole = read_hosts(CLUSTERS / "gpus_128.toml")
    assert whole.training is not None and whole.training.minibatch is not None
    minibatches = 16 * whole.training.examples / whole.training.minibatch
    published = {16: "14 h (P100)", 64: "5.2 h, 2.28 h", 128: "1.98 h"}
    cells = [["GPUs", "strategy", "hours", f"one {STRAGGLER:g} times slower", "published"]]
    for count, told in published.items():
        equal = whole.fastest_learners(count)
        slow = equal.host[-1].model_copy(update={"name": "slow", "learners": 1, "speed": 0.1})
        last = equal.host[-1].model_copy(update={"learners": equal.host[-1].learners - 1})
        one_slow = equal.model_copy(update={"host": [*equal.host[:-1], last, slow]})
        synchronous = ("allreduce", "delay-by-one") if count <= MOST_SYNCHRONOUS else ()
        for name in (*synchronous, "adpsgd", "gossip-random"):
            hours = []
            for hosts in (equal, one_slow):
                pace = 2 if name in synchronous else 8 if name == "adpsgd" else 16
                seconds = steady_seconds(
                    make(name), hosts, whole.training.parameters, 0.082, pace, 64
                )
                hours.append(f"{minibatches * seconds / 3600:.2f}")
            cells.append([f"{count}", name, *hours, told])
    return align(cells)


def main() -> None:
    """Prints the tables."""
    for table in (server_on_four_gpus, resident_averaging, averaging_on_gpus, adpsgd_and_allreduce):
        print(f"{(table.__doc__ or '').strip()}\n", flush=True)
        print("\n".join([*table(), ""]), flush=True)


if __name__ == "__main__":
    main()
