"""Stability on a quadratic, against closed forms: what a delay costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from unisono.fabric import Address
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.strategies import AllReduce, DelayByOne, PushKind, Server
from unisono.strategies.engines.pushes import Push
from unisono.strategies.engines.server_agent import ServerAgent
from unisono.testing.ledger import Kind
from unisono.testing.simulated import ToyCluster

STEPS = 220


@dataclass(frozen=True)
class Bowl:
    """|x - t|^2 / 2, the same for every minibatch: curvature 1, no noise.

    Learners are pulled ``apart`` to both sides, by points t whose mean is zero.
    """

    apart: float = 0.0
    dimension: int = 2

    def start(self, number: int) -> torch.Tensor:
        return torch.tensor([1.0, -0.5], dtype=torch.float64)

    def load(self, position: int) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.float64)

    def gradient(
        self, x: torch.Tensor, data: torch.Tensor, who: Address, step: int
    ) -> torch.Tensor:
        return x - self.apart * (-1) ** who.number


def end(
    make: Callable[[], Any], learners: int, rate: float, steps: int, apart: float = 0.0
) -> float:
    """How far from the minimum a run ends, by its consensus; with ``apart``, by its last step."""
    run = ToyCluster(
        strategy=make(),
        learners=learners,
        total=steps,
        loss=Bowl(apart),
        rate=rate,
        network=SimulatedNetwork(latency=1e-6),
    ).run()
    if apart:
        entries = run.survivors[0].ledger.entries
        return float(np.abs([e.vector for e in entries if e.kind is Kind.STEP][-1]).max())
    consensus = run.survivors[0].consensus
    assert consensus is not None
    return float(np.abs(consensus).max())


def served() -> Server:
    return Server(push=PushKind.GRADIENT, push_every=1, overlap=False, shards=1)


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_equal_learners_of_a_server_are_as_stale_as_there_are_others(learners: int) -> None:
    """The limit of stable rates is that of a delay of W - 1 pushes."""
    limit = 2 * math.sin(math.pi / (2 * (2 * (learners - 1) + 1)))
    assert served().staleness(learners) == learners - 1
    assert end(served, learners, 0.93 * limit, STEPS * learners) < 0.05
    assert end(served, learners, 1.07 * limit, STEPS * learners) > 5.0


@pytest.mark.parametrize("learners", [1, 2, 4])
@pytest.mark.parametrize("push_every", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_staleness_of_equal_learners(
    learners: int, push_every: int, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one turn of all it is that of the formula, exactly, for every push."""
    seen: list[int] = []
    complete = ServerAgent._complete

    def noted(self: ServerAgent, push: Push) -> None:
        if push.update is not None:
            seen.append(push.stale)
        complete(self, push)

    monkeypatch.setattr(ServerAgent, "_complete", noted)
    strategy = Server(push=PushKind.GRADIENT, push_every=push_every, overlap=overlap)
    ToyCluster(strategy=strategy, learners=learners, total=30 * learners * push_every).run()
    expected = strategy.staleness(learners)
    assert set(seen[2 * learners : -2 * learners]) == {expected}


@pytest.mark.parametrize("learners", [2, 4])
def test_the_limits_of_the_static_ones(learners: int) -> None:
    """The means: 2 for both; the differences of learners that are pulled apart: 1, if delayed."""
    for make in (AllReduce, DelayByOne):
        assert end(make, learners, 0.95 * 2, STEPS * learners) < 0.05
        assert end(make, learners, 1.05 * 2, STEPS * learners) > 5.0
    assert end(DelayByOne, learners, 0.95, STEPS * learners, apart=1.0) < 2.0
    assert end(DelayByOne, learners, 1.05, STEPS * learners, apart=1.0) > 100.0
    assert end(AllReduce, learners, 1.05, STEPS * learners, apart=1.0) < 2.0


def test_the_factor_of_the_rule_is_the_limit_s() -> None:
    for learners in (1, 2, 4, 9):
        delay = learners - 1
        factor = Server(push=PushKind.GRADIENT, push_every=3, overlap=False).rate_factor(learners)
        assert factor == pytest.approx(math.sin(math.pi / (2 * (2 * delay + 1))))
