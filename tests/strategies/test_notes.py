"""Notes of uncommitted work stay small, however far away the coordinator is."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.fabric import COORDINATOR, Address, learner
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.pool.ranges import Range, merge, merge_notes, subtract
from unisono.simulation.loops import run_loops
from unisono.strategies import ADPSGD, GossipFixed, GossipRandom, Server
from unisono.testing import invariants
from unisono.testing.simulated import ToyCluster

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)
FEW_BYTES = 4096
"""Of a message with the work that four learners do while a report is on its way and back."""


def positions(ranges: Any) -> set[int]:
    return {position for start, stop in ranges for position in range(start, stop)}


@given(RANGES, RANGES)
def test_ranges_merge_as_sets_do(one: list[Range], other: list[Range]) -> None:
    merged = merge(one, other)
    assert positions(merged) == positions(one) | positions(other)
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    assert positions(subtract(one, other)) == positions(one) - positions(other)
    notes = merge_notes({learner(0): one}, {learner(1): other}, {learner(0): other})
    assert notes == {learner(0): merged, learner(1): merge(other)}


@dataclass(frozen=True)
class FarCoordinator(SimulatedNetwork):
    """The learners are close to each other, and far from the coordinator."""

    far: float = 1.0
    near: float = 0.001
    sizes: list[int] = field(default_factory=list)

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Also notes the bytes of all messages."""
        self.sizes.append(nbytes)
        return self.far if COORDINATOR in (sender, receiver) else self.near


@pytest.mark.parametrize(
    "strategy",
    [GossipRandom(every=1), GossipFixed(every=1), ADPSGD(every=1), Server(push_every=1)],
    ids=repr,
)
@settings(max_examples=4, deadline=None)
@given(far=st.floats(0.01, 8.0), seed=st.integers(0, 1000), total=st.sampled_from([60, 120]))
def test_messages_do_not_grow_with_the_run(
    strategy: Any, far: float, seed: int, total: int
) -> None:
    """The toys take a second for a minibatch, and tell of work up to eight seconds later."""
    network = FarCoordinator(far=far)
    run = ToyCluster(
        strategy=strategy,
        learners=4,
        total=total,
        network=network,
        timeout=100.0,
        scheduler=SeededScheduler(seed),
        limit=50_000.0,
    ).run()
    invariants.all_committed(run)
    invariants.nothing_lost(run)
    assert max(network.sizes) < FEW_BYTES


@pytest.mark.parametrize("strategy", [GossipRandom(every=1), ADPSGD(every=1)], ids=repr)
def test_a_coordinator_that_is_ten_minibatches_away(strategy: Any) -> None:
    """Minibatches of a millisecond, and 10 ms to the coordinator: a report is long on its way."""
    data = TensorDataset(torch.randn(480, 5), torch.randn(480, 1))

    def loop() -> None:
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with unisono.Learner(model, optimizer, strategy) as learner:
            for x, y in learner.draw(data, 1, 4):
                learner.step(nn.functional.mse_loss(model(x), y))

    network = FarCoordinator(far=0.01, near=0.0001)
    run = run_loops(loop, learners=4, cost=0.001, network=network)
    assert run.state.pool.counts.committed == 120
    assert max(network.sizes) < FEW_BYTES
