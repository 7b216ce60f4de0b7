"""How a run begins: from one model, which is sent to those alone who do not have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unisono
from support.loops import BATCH, dataset, flat, loss_of, network, sgd, simulated, threads
from unisono.learner.placement import find_placement
from unisono.learner.storage import ModelStorage
from unisono.simulation import Join, Kill

AVERAGING = {"every": 2 * BATCH}
STRATEGIES: dict[str, Any] = {
    "allreduce": "allreduce",
    "static": unisono.Averaging(sharding=unisono.Sharding.STATIC, **AVERAGING),
    "dynamic": unisono.Averaging(sharding=unisono.Sharding.DYNAMIC, **AVERAGING),
    "slowmo": unisono.Averaging(outer=unisono.SlowMo(), **AVERAGING),
    "int8": unisono.Averaging(precision=unisono.Precision.INT8, **AVERAGING),
    "delay-by-one": "delay-by-one",
    "gossip-fixed": unisono.GossipFixed(every=2 * BATCH),
    "gossip-random": unisono.GossipRandom(every=2 * BATCH),
    "adpsgd": unisono.ADPSGD(every=2 * BATCH),
    "server": unisono.Server(push_every=4),
    "averaged-server": unisono.AveragedServer(push_every=4),
    "elastic": unisono.Elastic(push_every=4),
}
LEARNERS = 8


class Beginnings:
    """A user's loop that notes what each learner has at its first minibatch, and has sent."""

    def __init__(self, strategy: Any, *, alike: bool, momentum: bool = False) -> None:
        self._strategy = strategy
        self._alike = alike
        self._momentum = momentum
        self.initial: dict[int, torch.Tensor] = {}
        self.first: dict[int, torch.Tensor] = {}
        self.sent: dict[int, int] = {}
        self.velocity: dict[int, float] = {}
        self.nbytes = 0

    def loop(self) -> None:
        number = find_placement().number
        model = network(seed=0 if self._alike else number, norm=True)
        optimizer = sgd(model)
        if self._momentum:
            self._prepare(model, optimizer, number)
        self.nbytes = ModelStorage(model).nbytes
        self.initial[number] = flat(model)
        with unisono.Learner(model, optimizer, self._strategy, prefetch=0) as learner:
            for batch in learner.draw(dataset(), 4, BATCH):
                if number not in self.first:
                    self.first[number] = flat(model)
                    self._note(learner, optimizer, number)
                learner.step(loss_of(model, batch))
                if learner.bytes_sent == 0:
                    self.sent[number] = 0  # a server's shards are placed beside the first one

    def _prepare(self, model: torch.nn.Module, optimizer: Any, number: int) -> None:
        """Momentum from before the run, the same step for all but the sign."""
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + number)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer.step()
        optimizer.zero_grad()
        model.load_state_dict(before)

    def _note(self, learner: unisono.Learner, optimizer: Any, number: int) -> None:
        self.sent[number] = learner.bytes_sent
        state = next(iter(optimizer.state.values()), {})
        if "momentum_buffer" in state:
            self.velocity[number] = float(state["momentum_buffer"].flatten()[0])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_model_that_all_have_is_not_sent(name: str) -> None:
    begun = Beginnings(STRATEGIES[name], alike=True)
    ran = simulated(begun.loop, LEARNERS)
    assert begun.sent == dict.fromkeys(range(LEARNERS), 0)
    assert all(torch.equal(begun.first[n], begun.initial[0]) for n in range(LEARNERS))
    assert ran.counts.committed == ran.state.pool.total == 52


@pytest.mark.parametrize("name", STRATEGIES)
def test_learners_that_differ_begin_with_the_first_ones_model(name: str) -> None:
    begun = Beginnings(STRATEGIES[name], alike=False)
    simulated(begun.loop, LEARNERS)
    assert not torch.equal(begun.initial[0], begun.initial[1])
    assert all(torch.equal(begun.first[n], begun.initial[0]) for n in range(LEARNERS))


@pytest.mark.parametrize("name", ["static", "dynamic", "slowmo", "int8", "delay-by-one"])
def test_a_model_that_is_agreed_on_is_sent_once(name: str) -> None:
    """The parameters and the last round's model are one vector at first; SlowMo's is zero."""
    begun = Beginnings(STRATEGIES[name], alike=False)
    simulated(begun.loop, LEARNERS)
    vectors = 2 if name == "slowmo" else 1
    assert sum(begun.sent.values()) == vectors * (LEARNERS - 1) * begun.nbytes


def test_only_those_who_differ_are_sent_the_model() -> None:
    begun = Beginnings(STRATEGIES["static"], alike=True)

    def loop() -> None:
        if find_placement().number == 2:
            Beginnings.loop(other)
        else:
            begun.loop()

    other = Beginnings(STRATEGIES["static"], alike=False)
    simulated(loop, 4)
    assert sum(begun.sent.values()) == begun.nbytes
    assert torch.equal(other.first[2], begun.initial[0])


def test_momentum_of_before_the_run_is_the_first_ones_where_steps_are_shared() -> None:
    """allreduce: the same parameters are not enough, the optimizers must be alike, too."""
    begun = Beginnings("allreduce", alike=True, momentum=True)
    simulated(begun.loop, 3)
    assert begun.velocity == dict.fromkeys(range(3), begun.velocity[0])
    assert sum(begun.sent.values()) > 2 * begun.nbytes


@pytest.mark.parametrize("name", ["static", "dynamic", "gossip-random", "allreduce"])
@pytest.mark.parametrize("alike", [False, True], ids=["apart", "alike"])
def test_threads_begin_with_one_model(name: str, alike: bool) -> None:
    """On the real fabric."""
    begun = Beginnings(STRATEGIES[name], alike=alike)
    ran = threads(begun.loop, 3)
    assert all(torch.equal(begun.first[n], begun.initial[0]) for n in range(3))
    assert ran.counts.committed == 52


@pytest.mark.parametrize("name", STRATEGIES)
def test_who_comes_late_gets_the_state_of_the_others(name: str) -> None:
    """With the parameters that the run began with, which are nobody's any more."""
    begun = Beginnings(STRATEGIES[name], alike=True)
    ran = simulated(begun.loop, 2, faults=[Join(4.5, 5), Kill(6.5, 1)], timeout=1.0)
    assert not torch.equal(begun.first[5], begun.initial[5])
    assert ran.counts.committed == 52
