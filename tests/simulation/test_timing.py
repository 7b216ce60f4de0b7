"""Time alone: closed forms, and the same bytes as real vectors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.loops import run_loops
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import Timing, time_strategy
from unisono.strategies.registry import make

PARAMETERS = 1_000_000
BYTES = 4 * PARAMETERS
COST = 0.05
LINK = Link(bandwidth_mbit=8 * 40.0, latency_ms=1.0)
"""40 MB a second: a model takes 0.1 s."""


def timing(
    name: str, learners: int, minibatches: int, slow: float = 1.0, memory: Link = LINK
) -> Timing:
    host = HostTable(name="one", learners=learners)
    return time_strategy(
        make(name),
        name=name,
        learners=learners,
        minibatches=minibatches,
        batch_size=256,
        parameters=PARAMETERS,
        prefetch=4,
        cost=COST,
        slowness={0: slow},
        spread={},
        network=HostNetwork(Hosts(shared_memory=memory, host=[host])),
    )


@pytest.mark.parametrize("learners", [2, 8])
def test_allreduce_takes_k_times_a_minibatch_and_a_round(learners: int) -> None:
    rounds = 10
    short, long = (timing("allreduce", learners, n * learners) for n in (rounds, 2 * rounds))
    send = 0.001 + (learners - 1) / learners * BYTES / 40e6
    expected = rounds * (COST + 2 * send)
    assert long.seconds - short.seconds == pytest.approx(expected, rel=0.01)
    assert long.minibatches == [2 * rounds] * learners
    # Everybody sends N - 1 parts of 1 / N of the gradients, and as much of the mean.
    extra = rounds * learners * 2 * (learners - 1) / learners * BYTES
    assert long.bytes_sent - short.bytes_sent == pytest.approx(extra, rel=1e-6)


def test_solo_computes_all_the_time() -> None:
    alone = timing("solo", 1, 40)
    assert alone.seconds == pytest.approx(40 * COST, rel=5e-3)
    assert alone.computing == pytest.approx(1.0, rel=5e-3)
    assert alone.bytes_sent == 0 and alone.staleness is None


@pytest.mark.parametrize("strategy", ["gossip-random", "server"])
def test_nobody_waits_for_a_slow_learner(strategy: str) -> None:
    many = 1200
    fast_memory = Link(bandwidth_mbit=40_000.0, latency_ms=0.1)
    slowed = timing(strategy, 8, many, slow=5.0, memory=fast_memory)
    assert sum(slowed.minibatches) == many
    fast = many / 7.2  # 7 learners and a fifth
    assert min(slowed.minibatches[1:]) >= 0.9 * fast
    assert slowed.seconds <= 1.3 * fast * COST  # the slow one has some leases left at the end


@pytest.mark.parametrize(
    "name",
    ["gossip-random", "adpsgd", "averaging", "allreduce", "delay-by-one", "server", "elastic"],
)
def test_messages_that_are_not_copied_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time alone spares the copies of messages that a simulation with numerics makes."""
    fast = timing(name, 5, 100, slow=2.0)
    monkeypatch.setattr(
        "unisono.simulation.timing.run_loops",
        lambda loop, **options: run_loops(loop, **{**options, "numerics": True}),
    )
    assert timing(name, 5, 100, slow=2.0) == fast


_TRACE = """
import hashlib
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import time_strategy
from unisono.strategies.registry import make

class Traced(HostNetwork):
    trace = hashlib.sha256()

    def delay(self, sender, receiver, nbytes, now):
        self.trace.update(repr((sender.name, receiver.name, nbytes, now)).encode())
        return super().delay(sender, receiver, nbytes, now)

link = Link(bandwidth_mbit=10_000.0, latency_ms=0.1)
hosts = [HostTable(name=f"host-{n}") for n in range(16)]
network = Traced(Hosts(shared_memory=link, network=link, host=hosts))
time_strategy(
    make("gossip-random"), name="gossip-random", learners=16, minibatches=320, batch_size=256,
    parameters=1_000_000, prefetch=2, cost=0.1, slowness={}, spread={}, network=network,
)
print(network.trace.hexdigest())
"""


def test_every_message_is_the_same_in_every_process() -> None:
    """Among equal learners many things happen at once; the hash seed of Python decides nothing."""
    traces = {
        subprocess.run(
            [sys.executable, "-c", _TRACE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(traces) == 1 and traces.pop().strip()
