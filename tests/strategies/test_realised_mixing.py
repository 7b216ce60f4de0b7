"""Exchanges that are due take place: who is refused asks again at once, and the share is told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.simulation.loops import LoopsRun, run_loops
from unisono.strategies import ADPSGD, GossipFixed, GossipRandom
from unisono.strategies.mixing import Mixing, NeighbourMixing, ring

BATCH = 4


def train(
    strategy: Any, learners: int, latency: float, spread: float = 0.0
) -> tuple[LoopsRun, Counter[int]]:
    """40 minibatches a learner of one second each, and how many each has trained."""
    data = TensorDataset(
        torch.randn(BATCH * 40 * learners, 5), torch.randn(BATCH * 40 * learners, 1)
    )
    steps: Counter[int] = Counter()

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with unisono.Learner(model, optimizer, strategy) as learner:
            for x, y in learner.draw(data, 1, BATCH):
                learner.step(nn.functional.mse_loss(model(x), y))
                steps[learner.number] += 1

    run = run_loops(
        loop,
        learners=learners,
        spread=dict.fromkeys(range(learners), spread),
        network=SimulatedNetwork(latency=latency),
    )
    return run, steps


@pytest.mark.parametrize("learners", [4, 8])
@pytest.mark.parametrize("latency", [0.001, 0.05])
@pytest.mark.parametrize(
    "strategy", [GossipFixed(every=BATCH), GossipRandom(every=BATCH)], ids=repr
)
def test_equal_learners_complete_the_exchanges_that_they_begin(
    strategy: Any, latency: float, learners: int
) -> None:
    """Each is told once by the learner that has begun it; one is due after each minibatch."""
    run, steps = train(strategy, learners, latency)
    rounds = Counter(e["learner"] for e in run.events if e["event"] == "round")
    assert rounds.total() >= 0.9 * steps.total()


@pytest.mark.parametrize(
    "strategy", [GossipFixed(every=2 * BATCH), GossipRandom(every=2 * BATCH)], ids=repr
)
def test_what_is_told_at_the_end_is_what_took_place(strategy: Any) -> None:
    """Exchanges take longer than minibatches here: not all that are due can take place."""
    run, steps = train(strategy, 4, 0.9)
    rounds = Counter(e["learner"] for e in run.events if e["event"] == "round")
    told = {e["learner"]: e for e in run.events if e["event"] == "exchanges"}
    for number, count in steps.items():
        assert told[number]["due"] == count // 2
        # At the end learners exchange until all is committed: that is more than is due.
        assert told[number]["completed"] <= min(rounds[number], told[number]["due"])
    completed, due = (sum(e[key] for e in told.values()) for key in ("completed", "due"))
    assert 0.3 * due < completed < 0.95 * due


@pytest.mark.parametrize("mixing", [ring(8), NeighbourMixing(8)], ids=repr)
def test_half_of_the_exchanges_shrink_the_distance_half_as_fast(mixing: Mixing) -> None:
    assert mixing.realised(1.0) == pytest.approx(mixing.kept)
    assert mixing.realised(0.5) ** 2 == pytest.approx(mixing.kept)


def test_a_neighbour_whose_model_is_on_its_way_is_not_due_for_another() -> None:
    run, steps = train(ADPSGD(every=BATCH), 4, 0.9, spread=0.3)
    told = [e for e in run.events if e["event"] == "exchanges"]
    assert sum(e["due"] for e in told) == 2 * steps.total()
    # A model comes back after 1.8 s, unless the neighbour's own was on its way already.
    assert 0.3 < sum(e["completed"] for e in told) / sum(e["due"] for e in told) < 1.0
