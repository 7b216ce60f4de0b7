"""The clusters of examples/clusters: each loads, and can be timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.config import OptimizerChoice
from unisono.simulation.disturbances import disturbances_of
from unisono.simulation.hosts import read_hosts
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import time_strategy
from unisono.strategies.registry import make

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"
LEARNERS = {
    "eight_machines": 8,
    "four_gpus": 4,
    "four_machines": 4,
    "gpus_128": 128,
    "office": 16,
    "six_machines": 15,
    "two_workstations": 8,
    "volunteers": 1000,
}


def test_every_cluster_is_known_here() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.toml")) == sorted(LEARNERS)


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_a_cluster_loads_with_all_that_a_plan_needs(name: str, tmp_path: Path) -> None:
    file = FOLDER / f"{name}.toml"
    hosts = read_hosts(file)
    assert hosts.learners == LEARNERS[name]
    assert {OptimizerChoice.SGD, OptimizerChoice.NG_SGD} <= hosts.minibatch_ms.keys()
    assert hosts.shared_memory is not None
    written = tmp_path / "hosts.toml"
    written.write_text(hosts.dump())
    assert read_hosts(written) == hosts
    comment = " ".join(line[1:] for line in file.read_text().splitlines() if line[:1] == "#")
    assert any(word in comment for word in ("Where the numbers come from", "see eight_machines"))


@pytest.mark.parametrize("name", sorted(set(LEARNERS) - {"volunteers", "gpus_128"}))
def test_a_cluster_can_be_timed(name: str) -> None:
    hosts = read_hosts(FOLDER / f"{name}.toml")
    timing = time_strategy(
        make("gossip-random", {"every": 2048}),
        name=name,
        learners=hosts.learners,
        minibatches=24 * hosts.learners,
        batch_size=256,
        parameters=100_000,
        prefetch=4,
        cost=hosts.minibatch_ms[OptimizerChoice.NG_SGD] / 1000,
        slowness={number: host.slowness for number, host in enumerate(hosts.places)},
        spread={number: host.spread for number, host in enumerate(hosts.places)},
        network=HostNetwork(hosts),
        disturbances=disturbances_of(hosts, 0),
    )
    assert sum(timing.minibatches) == 24 * hosts.learners
    assert timing.bytes_sent > 0
