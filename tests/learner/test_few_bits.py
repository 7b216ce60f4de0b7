"""Learners that share in few bits: the same on threads as simulated, and NaN goes nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import unisono
from support.loops import BATCH, Ran, dataset, flat, loss_of, network, sgd, simulated, threads
from unisono import Precision, PushKind, Sharding

Together = Callable[..., Ran]
STATIC: dict[str, Any] = {
    "averaging": unisono.Averaging(
        every=2 * BATCH, sharding=Sharding.STATIC, precision=Precision.INT4
    ),
    "allreduce": unisono.AllReduce(precision=Precision.ONE_BIT),
    "delay-by-one": unisono.DelayByOne(precision=Precision.INT8),
}
DYNAMIC: dict[str, Any] = {
    "averaging": unisono.Averaging(every=2 * BATCH, precision=Precision.INT8),
    "gossip-random": unisono.GossipRandom(every=2 * BATCH, precision=Precision.INT4),
    "adpsgd": unisono.ADPSGD(every=BATCH, precision=Precision.INT8),
    "server": unisono.Server(push_every=2, precision=Precision.INT8),
    "server, gradients": unisono.Server(push=PushKind.GRADIENT, precision=Precision.INT4),
}


def train(together: Together, strategy: Any, learners: int = 3) -> dict[int, torch.Tensor]:
    """Everybody's parameters at the end."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with unisono.Learner(model, optimizer, strategy) as learner:
            for batch in learner.draw(dataset(), 8, BATCH):
                learner.step(loss_of(model, batch))
            assert learner.rounds > 2
        ends[learner.number] = flat(model)

    together(loop, learners)
    return ends


@pytest.mark.parametrize("name", STATIC)
def test_threads_and_simulation_come_to_the_same_bits(name: str) -> None:
    real, virtual = (train(together, STATIC[name]) for together in (threads, simulated))
    for ends in (real, virtual):
        for number in (0, 1, 2):
            assert torch.equal(ends[number], virtual[0])


@pytest.mark.parametrize("together", [threads, simulated])
@pytest.mark.parametrize("name", DYNAMIC)
def test_all_end_with_the_same_trained_model(name: str, together: Together) -> None:
    ends = train(together, DYNAMIC[name])
    model = network()
    before = loss_of(model, dataset().tensors).item()
    torch.nn.utils.vector_to_parameters(ends[0], model.parameters())
    assert loss_of(model, dataset().tensors).item() < 0.8 * before
    for end in ends.values():
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4, Precision.ONE_BIT])
def test_a_gradient_that_is_not_finite_is_stepped_with_by_nobody(precision: Precision) -> None:
    """One learner's loss is infinite once: all skip that step, and go on as one."""
    ends: dict[int, torch.Tensor] = {}
    skipped: dict[int, int] = {}

    def loop() -> None:
        model = network()
        strategy = unisono.AllReduce(precision=precision)
        with unisono.Learner(model, sgd(model), strategy) as learner:
            for step, batch in enumerate(learner.draw(dataset(), 2, BATCH)):
                loss = loss_of(model, batch)
                learner.step(loss * float("inf") if (step, learner.number) == (3, 1) else loss)
            skipped[learner.number] = learner.skipped
        ends[learner.number] = flat(model)

    simulated(loop, 3)
    assert set(skipped.values()) == {1}
    for end in ends.values():
        assert torch.equal(end, ends[0]) and bool(end.isfinite().all())
