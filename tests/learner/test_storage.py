"""A model as a vector and back, and the learner's parameters as others see them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from support.loops import network
from unisono.errors import Diverged
from unisono.fabric import TensorVector, learner
from unisono.fabric.simulated.kernel import Kernel
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.finite_guard import FiniteGuard
from unisono.learner.replica import LearnerReplica
from unisono.learner.storage import ModelStorage
from unisono.strategies.base import StateBundle, TrainedWork


class Mixed(nn.Module):
    """Every kind of tensor that a model can have."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
        self.single = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
        self.scalar = nn.Parameter(torch.tensor(0.25))
        self.none = nn.Parameter(torch.empty(0))
        self.frozen = nn.Parameter(torch.tensor([7.0]), requires_grad=False)
        self.code = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)
        self.register_buffer("mean", torch.tensor([0.5]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([0.0, -float("inf")]))


def read(storage: ModelStorage) -> torch.Tensor:
    vector = storage.new()
    storage.read(vector)()
    return vector.tensor.clone()


def test_there_and_back() -> None:
    model = Mixed()
    storage = ModelStorage(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    values = read(storage)
    expected = [1.5, -2.0, 0, 3, 1, 4, 2, 5, 0.25, 7.0, 0.5]
    assert values.tolist() == expected and values.dtype is torch.float32
    storage.write(TensorVector(values * 2))
    assert read(storage).tolist() == [2 * v if v != 7.0 else v for v in expected]
    storage.add(TensorVector(-values))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    storage.write(TensorVector(values + 1), frozen=True)
    assert model.frozen.item() == 8.0 and model.code.tolist() == [3, 4]


def test_a_model_with_doubles_is_a_vector_of_doubles() -> None:
    model = network()
    storage = ModelStorage(model)
    storage.recycle(storage.new())
    assert storage.new().tensor.dtype is torch.float32
    storage.recycle(TensorVector(torch.empty(len(storage.new()))))
    model.double()
    assert storage.new().tensor.dtype is torch.float64


def test_vectors_are_used_again() -> None:
    storage = ModelStorage(network())
    vector = storage.new()
    storage.recycle(vector)
    assert storage.new() is vector
    assert storage.new() is not vector
    for _ in range(100):
        storage.recycle(vector.like())
    assert len(storage._free) <= 4


def test_gradients_there_and_back() -> None:
    model = Mixed()
    storage = ModelStorage(model)
    model.single.grad = torch.zeros(3, 2)
    model.low.grad = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    vector = storage.read_gradient()
    assert vector.tensor[:2].tolist() == [1.0, 2.0]
    mean = vector.copy()
    mean.scale(0.5)
    mean.add(vector, 0.5)
    storage.write_gradient(mean)
    assert model.scalar.grad is None and model.frozen.grad is None and model.code.grad is None
    assert model.single.grad is not None and not model.single.grad.any()
    assert model.low.grad is not None and model.low.grad.tolist() == [1.0, 2.0]
    # Another learner has a gradient, though it is zero: then all have one.
    other = vector.copy()
    other.tensor[8] = 0.0
    mean.add(other)
    storage.write_gradient(mean)
    assert model.scalar.grad is not None and model.scalar.grad.item() == 0.0
    # And what everybody misses is taken away here, too.
    missing = vector.copy()
    missing.tensor[2:8] = -0.0
    storage.write_gradient(missing)
    assert model.single.grad is None


def test_models_that_differ_have_other_fingerprints() -> None:
    prints = {
        ModelStorage(model).fingerprint()
        for model in (
            network(),
            network(norm=True),
            network().double(),
            nn.Sequential(nn.Linear(6, 10)),
            nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10, affine=False)),
            Mixed(),
        )
    }
    assert len(prints) == 6
    assert ModelStorage(network(seed=1)).fingerprint() == ModelStorage(network(2)).fingerprint()


def test_a_model_on_several_devices_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(unisono.UserError, match="spread over cpu, meta"):
        ModelStorage(model).begin()


# The replica.


class NoOptimizer:
    """Nothing to know."""

    def learning_rate(self) -> float:
        return 0.1

    def restart(self) -> None: ...

    def export(self) -> StateBundle:
        return StateBundle()

    def take_over(self, bundle: StateBundle) -> None: ...


def replica_of(model: nn.Module, node: Any) -> LearnerReplica:
    return LearnerReplica(ModelStorage(model), NoOptimizer(), node, None)  # type: ignore[arg-type]


def scalar() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


@pytest.mark.parametrize("seed", range(20))
def test_snapshots_are_parameters_plus_pending_deltas(seed: int) -> None:
    """A learner that steps by ones beside an agent that hands in deltas and takes snapshots.

    Whatever the schedule, a snapshot holds as many steps as its work says, and all deltas that
    were handed in before it; at the end nothing is lost.
    """
    kernel = Kernel(scheduler=SeededScheduler(seed, switching=0.5))
    node = SimulatedNode(kernel, learner(0))
    model = scalar()
    replica = replica_of(model, node)
    luck = random.Random(seed)
    handed_in = 0.0
    worked = 0

    def learn() -> None:
        for step in range(40):
            if luck.random() < 0.3:
                with replica.showing(TensorVector(torch.full((1,), -1000.0))):
                    node.sleep(luck.random())
                    assert model.weight.item() == -1000.0
            replica.begin_update()
            with torch.no_grad():
                model.weight += 1
            node.sleep(0.1)
            replica.end_update(TrainedWork([(step, step + 1)], 1))
            node.sleep(luck.random())

    def agent() -> None:
        nonlocal handed_in, worked
        for _ in range(30):
            node.sleep(luck.random())
            for _ in range(luck.randrange(3)):
                replica.add(TensorVector(torch.full((1,), 1000.0)))
                handed_in += 1000.0
            snapshot = replica.snapshot()
            worked += snapshot.work.examples
            assert isinstance(snapshot.vector, TensorVector)
            assert snapshot.vector.tensor.item() == handed_in + worked

    kernel.main(node, learn)
    node.spawn("agent", agent)
    kernel.run()
    replica.end_update(TrainedWork())
    assert worked > 0 and handed_in > 0
    assert model.weight.item() == 40 + handed_in


def test_a_snapshot_is_not_changed_by_what_comes_after_it() -> None:
    """The copy of pending deltas may go on after the lock is free: another delta must wait."""
    node = SimulatedNode(Kernel(), learner(0))
    replica = replica_of(scalar(), node)
    replica.add(TensorVector(torch.ones(1)))
    finish = replica._begin_read()
    replica.add(TensorVector(torch.full((1,), 10.0)))
    replica.end_update(TrainedWork())
    replica.add(TensorVector(torch.full((1,), 100.0)))
    vector = finish()
    assert isinstance(vector, TensorVector) and vector.tensor.item() == 1.0
    late = replica.snapshot().vector
    assert isinstance(late, TensorVector) and late.tensor.item() == 111.0


def test_what_a_snapshot_still_reads_is_not_used_again() -> None:
    node = SimulatedNode(Kernel(), learner(0))
    replica = replica_of(scalar(), node)
    replica.add(TensorVector(torch.ones(1)))
    finish = replica._begin_read()
    replica.end_update(TrainedWork())
    for _ in range(5):
        replica._storage.new().tensor.fill_(99.0)
    vector = finish()
    assert isinstance(vector, TensorVector) and vector.tensor.item() == 1.0


# The guard.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_guard(dtype: torch.dtype) -> None:
    guard = FiniteGuard()
    parameters = [nn.Parameter(torch.zeros(300, 300, dtype=dtype)) for _ in range(2)]
    assert guard.allows(parameters)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 100.0)
    # Summed up in half precision this would overflow.
    assert guard.allows(parameters) and guard.skipped == 0
    for bad in (float("nan"), float("inf"), -float("inf")):
        parameters[1].grad[299, 299] = bad  # type: ignore[index]
        assert not guard.allows(parameters)
    assert guard.skipped == 3
    guard.check(0)
    for _ in range(7):
        guard.count()
    with pytest.raises(Diverged, match="learner 0: 10 steps were not finite"):
        guard.check(0)
    parameters[1].grad = None
    assert guard.allows(parameters)
    guard.check(0)


def test_a_loss_that_is_not_finite_marks_its_gradients() -> None:
    guard = FiniteGuard()
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.tensor(1.0))]
    parameters[1].grad = torch.tensor(-0.0)
    guard.mark(torch.tensor(3.0), lambda: parameters)
    assert parameters[1].grad.signbit()
    guard.mark(torch.tensor(float("inf")), lambda: parameters)
    assert parameters[0].grad is None and not parameters[1].grad.isfinite()
    parameters[0].grad = torch.ones(2, 3).t().contiguous().t()
    guard.mark(torch.tensor([float("nan")]), lambda: parameters)
    assert parameters[0].grad.isnan().sum() == 1
