"""Elastic averaging: the centre, the exchanges, and what they keep."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.strategies import Elastic
from unisono.testing.cluster import ToyRun
from unisono.testing.ledger import Kind
from unisono.testing.losses import Targets
from unisono.testing.simulated import ToyCluster
from unisono.testing.toy import Result

Numbers = NDArray[np.float64]
RATE = 0.4
LOSS = Targets(distance=100.0)
"""Far apart, and quick to go there: no exchange finds a learner near the centre."""


def run(strategy: Elastic, learners: int, total: int, seed: int = 0) -> ToyRun:
    return ToyCluster(
        strategy=strategy,
        learners=learners,
        total=total,
        loss=LOSS,
        rate=RATE,
        slowness={1: 2.5},
        network=SimulatedNetwork(latency=0.3),
        scheduler=SeededScheduler(seed),
    ).run()


def exchanged(result: Result) -> Numbers:
    """How far exchanges moved a learner: not its own steps, nor taking over the final centre."""
    moved, value = np.zeros(LOSS.dimension), np.zeros(LOSS.dimension)
    entries = result.ledger.entries
    assert entries[-1].kind is Kind.REPLACE
    for entry in entries[:-1]:
        if entry.kind is Kind.STEP:
            value = value + entry.vector
        elif entry.kind is Kind.REPLACE:
            moved, value = moved + (entry.vector - value), entry.vector
    return moved


@pytest.mark.parametrize("learners", [1, 2, 4])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_centre_moves_by_what_the_learners_give(
    learners: int, overlap: bool, shards: int
) -> None:
    """All begin at zero, so what the learners went back by is where the centre is."""
    found = run(Elastic(push_every=2, overlap=overlap, shards=shards), learners, 40, seed=learners)
    centre = found.survivors[0].consensus
    assert centre is not None and np.abs(centre).max() > 1
    given = -sum((exchanged(result) for result in found.survivors), np.zeros(LOSS.dimension))
    np.testing.assert_allclose(centre, given, rtol=1e-9)


@pytest.mark.parametrize("push_every", [1, 3])
@pytest.mark.parametrize("beta", [0.2, 0.9])
def test_one_learner_and_the_centre_follow_the_paper(push_every: int, beta: float) -> None:
    total = 30
    x, centre = np.zeros(LOSS.dimension), np.zeros(LOSS.dimension)
    for position in range(total):
        x = x - RATE * (x - LOSS.load(position).numpy())
        if (position + 1) % push_every == 0:
            difference = beta * (x - centre)
            x, centre = x - difference, centre + difference
    found = run(Elastic(push_every=push_every, beta=beta, overlap=False), 1, total)
    np.testing.assert_allclose(found.survivors[0].consensus, centre, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta is 0.0"),
        ({"beta": 1.0}, "beta is 1.0"),
        ({"push_every": 0}, "push_every is 0"),
        ({"shards": 0}, "shards is 0"),
        ({"shards": 100_000}, "shards is 100000: it must be from 1 to 1024"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Elastic(**options)
