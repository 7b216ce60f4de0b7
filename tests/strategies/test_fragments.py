"""Rounds in fragments: less on its way at once, and nothing else changes."""

from __future__ import annotations

import pytest

from support.traffic import TrafficNetwork
from unisono.errors import UserError
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.timing import Timing, time_strategy
from unisono.strategies import Averaging
from unisono.strategies.base import Sharding

MACHINES = 4


def timed(fragments: int) -> tuple[Timing, int]:
    """Four machines at 50 Mbit/s: the timing, and the most bytes that one had under way."""
    link = Link(bandwidth_mbit=50, latency_ms=0.1)
    memory = Link(bandwidth_mbit=1e5, latency_ms=0.01)
    machines = [HostTable(name=f"host-{number}") for number in range(MACHINES)]
    network = TrafficNetwork(Hosts(network=link, shared_memory=memory, host=machines))
    timing = time_strategy(
        Averaging(every=8192, fragments=fragments),
        name="averaging",
        learners=MACHINES,
        minibatches=2048,
        batch_size=256,
        parameters=769_174,
        prefetch=2,
        cost=0.025,
        slowness={},
        spread={},
        network=network,
    )
    return timing, network.most_in_flight()


def test_the_peak_of_traffic_falls_and_computing_does_not() -> None:
    whole, most_whole = timed(1)
    parts, most_parts = timed(8)
    assert most_whole == pytest.approx(4 * 769_174, rel=0.01)  # the model
    assert most_parts < most_whole / 6
    assert parts.computing > whole.computing - 0.02
    assert parts.bytes_sent / parts.rounds == pytest.approx(
        whole.bytes_sent / whole.rounds, rel=0.1
    )


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="fragments is 0: give a number from 1 to 256"):
        Averaging(fragments=0)
    with pytest.raises(UserError, match="fragments is 100000: give a number from 1 to 256"):
        Averaging(fragments=100000)
    with pytest.raises(UserError, match="set sharding=dynamic, or fragments=1"):
        Averaging(fragments=2, sharding=Sharding.STATIC)
