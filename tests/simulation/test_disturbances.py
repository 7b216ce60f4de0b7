"""Stragglers, deaths, joins and partitions of a hosts file."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest

from unisono.errors import UserError
from unisono.simulation.disturbances import disturbances_of
from unisono.simulation.fault_tables import FaultKind, FaultTable, StragglerTable
from unisono.simulation.faults import Join, Kill, Partition, Straggler
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import Timing, time_strategy
from unisono.strategies.registry import make

COST = 0.05
FREE = Link(bandwidth_mbit=1e6, latency_ms=0.01)


def cluster(*faults: FaultTable, count: int = 4, **of_last: Any) -> Hosts:
    """Hosts 0, 1, ... with a learner each; the keys are of the last one."""
    hosts = [HostTable(name=str(n)) for n in range(count - 1)]
    hosts.append(HostTable(name=str(count - 1), **of_last))
    return Hosts(shared_memory=FREE, network=FREE, host=hosts, fault=list(faults))


def timing(hosts: Hosts, strategy: str = "gossip-random", seed: int = 0) -> Timing:
    return time_strategy(
        make(strategy, {"every": 1024}),
        name=strategy,
        learners=hosts.learners,
        minibatches=800,
        batch_size=256,
        parameters=1000,
        prefetch=4,
        cost=COST,
        slowness={},
        spread={},
        network=HostNetwork(hosts),
        disturbances=disturbances_of(hosts, seed),
    )


def test_stragglers_are_constant_random_or_come_in_bursts() -> None:
    def straggler(**keys: Any) -> Straggler:
        defaults = {"share": None, "start": 0.0, "length": None, "period": None}
        return Straggler(**{"factor": 5.0, "source": random.Random(0), **defaults, **keys})

    assert straggler().slowness(1e6) == 5
    burst = straggler(start=10.0, length=2.0)
    assert [burst.slowness(t) for t in (9.9, 10.0, 11.9, 12.0, 110.5)] == [1, 5, 5, 1, 1]
    bursts = straggler(start=10.0, length=2.0, period=100.0)
    assert [bursts.slowness(t) for t in (9.9, 11.9, 12.0, 110.5, 112.5)] == [1, 5, 1, 5, 1]
    drawn = straggler(share=0.25)
    slow = sum(drawn.slowness(0.0) == 5 for _ in range(10_000))
    assert slow == pytest.approx(2500, rel=0.1)


def test_random_faults_depend_on_the_seed_alone() -> None:
    hosts = cluster(deaths_per_hour=6.0, back_after_s=100.0, partitions_per_hour=2.0)

    def drawn(seed: int) -> list[Any]:
        return list(islice(disturbances_of(hosts, seed).random_faults, 4000))

    faults = drawn(0)
    assert faults == drawn(0) and faults != drawn(1)
    assert [f.at for f in faults] == sorted(f.at for f in faults)
    changes = [f for f in faults if not isinstance(f, Partition)]
    assert all(f.number == 3 for f in changes)
    assert all(isinstance(f, Join if n % 2 else Kill) for n, f in enumerate(changes))
    # 600 s up and 100 s away, on average: a death every 700 s; a partition every 1830 s.
    span = faults[-1].at
    assert len(changes) / 2 == pytest.approx(span / 700, rel=0.1)
    assert len(faults) - len(changes) == pytest.approx(span / 1830, rel=0.1)


def test_a_dead_host_leaves_its_work_to_the_others() -> None:
    """Four learners for 2.5 s, 50 minibatches each; three share the rest."""
    dead = timing(cluster(FaultTable(kind=FaultKind.DEATH, host="3", at_s=2.5)))
    assert dead.seconds == pytest.approx(2.5 + (800 - 200) / 3 * COST, rel=0.05)
    back = timing(cluster(FaultTable(kind=FaultKind.DEATH, host="3", at_s=2.5, back_after_s=3.0)))
    assert back.seconds == pytest.approx(5.5 + (800 - 200 - 180) / 4 * COST, rel=0.05)
    assert back.minibatches[3] > dead.minibatches[3] + 50


def test_a_host_may_join_late() -> None:
    late = timing(cluster(FaultTable(kind=FaultKind.JOIN, host="3", at_s=5.0)))
    assert late.seconds == pytest.approx(5.0 + (800 - 300) / 4 * COST, rel=0.05)


def test_a_partition_that_lasts_counts_as_a_death() -> None:
    """The coordinator waits 10 s for a silent learner; then its work goes to the others."""
    cut = FaultTable(kind=FaultKind.PARTITION, host="3", at_s=2.5, for_s=1000.0)
    for strategy in ("gossip-random", "averaging"):
        found = timing(cluster(cut), strategy)
        assert found.seconds < 60
        assert found.minibatches[3] < 100


def test_a_random_straggler_takes_its_mean() -> None:
    """A tenth of the minibatches five times as long: 1.4 times as long on average."""
    table = StragglerTable(factor=5.0, share=0.1)
    found = timing(cluster(straggler=table))
    mean = found.computed_s[3] / found.minibatches[3]
    assert mean == pytest.approx(1.4 * COST, rel=0.15)
    assert found.computed_s[0] / found.minibatches[0] == pytest.approx(COST, rel=0.01)
    assert found == timing(cluster(straggler=table))
    assert found != timing(cluster(straggler=table), seed=1)


def test_somebody_must_be_left() -> None:
    deaths = [FaultTable(kind=FaultKind.DEATH, host=str(n), at_s=1.0) for n in range(2)]
    with pytest.raises(UserError, match="every learner died before the end"):
        timing(cluster(*deaths, count=2))
