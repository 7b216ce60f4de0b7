"""The learner on a GPU: events instead of waiting, pinned memory, cuDNN's layout of weights."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import unisono
from support.loops import (
    ALL,
    BATCH,
    CLASSES,
    SHARING,
    STATIC_AVERAGING,
    Ran,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    plain_batches,
    sgd,
    simulated,
)
from unisono.fabric import TensorVector
from unisono.fabric.address import learner as learner_address
from unisono.fabric.local.host import Host
from unisono.learner.finite_guard import FiniteGuard
from unisono.learner.replica import LearnerReplica
from unisono.learner.storage import ModelStorage
from unisono.strategies.base import StateBundle, TrainedWork

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
Together = Callable[..., Ran]


def there(batch: Any) -> Any:
    return tuple(t.cuda(non_blocking=True) for t in batch)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("fused", [True, False])
def test_one_learner_is_a_plain_loop(strategy: str, fused: bool) -> None:
    plain = network(norm=True).cuda()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02, fused=fused)
    for batch in plain_batches(2):
        loss_of(plain, there(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = network(norm=True)

    def loop() -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=fused)
        with unisono.Learner(model, optimizer, ALL[strategy]) as learner:
            model.cuda()  # after the learner was made
            loader = DataLoader(dataset(), BATCH, pin_memory=True, num_workers=1, shuffle=True)
            for batch in learner.draw(loader, epochs=2):
                assert batch[0].is_pinned()
                learner.step(loss_of(model, there(batch)))

    ran = alone(loop)
    assert ran.counts.committed == 26
    assert torch.equal(flat(model), flat(plain))


@pytest.mark.parametrize("strategy", SHARING)
def test_learners_that_share_a_gpu(strategy: str, together: Together) -> None:
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network(norm=True).cuda()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for batch in learner.draw(dataset(), epochs=2, batch_size=BATCH):
                learner.step(loss_of(model, there(batch)))
                if learner.every(examples=40):
                    before = flat(model)
                    with learner.consensus():
                        assert flat(model).isfinite().all()
                    assert torch.equal(flat(model), before)
            with learner.consensus():
                ends[learner.number] = flat(model)

    ran = together(loop, 3)
    assert ran.counts.committed == 26
    for end in ends.values():
        same = torch.equal if strategy != "dynamic" else torch.allclose
        assert same(end, ends[0])


def test_a_gpu_and_a_cpu_can_agree() -> None:
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), STATIC_AVERAGING) as learner:
            device = "cuda" if learner.number else "cpu"
            model.to(device)
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, tuple(t.to(device) for t in batch)))
        ends[learner.number] = flat(model).cpu()

    simulated(loop, 2)
    assert torch.equal(ends[0], ends[1])


class Recurrent(nn.Module):
    """cuDNN wants the weights of an LSTM in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x.unsqueeze(-1))
        logits: torch.Tensor = self.out(states[:, -1])
        return logits


@pytest.mark.parametrize("strategy", SHARING)
def test_lstm_weights_stay_in_one_piece(strategy: str) -> None:
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        torch.manual_seed(1)
        model = Recurrent().cuda()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for place, batch in enumerate(learner.draw(dataset(), batch_size=BATCH)):
                if place == 2:
                    model.lstm.flatten_parameters()
                learner.step(loss_of(model, there(batch)))
                with learner.consensus():
                    loss_of(model, there(batch))
        ends[learner.number] = flat(model)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulated(loop, 2)
    assert strategy == "dynamic" or torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("strategy", ALL)
def test_mixed_precision(strategy: str) -> None:
    """Overflows in half precision are skipped and counted, by all who share gradients."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**18, growth_interval=5)
        with unisono.Learner(model, optimizer, ALL[strategy]) as learner:
            for place, batch in enumerate(learner.draw(dataset(96), epochs=2, batch_size=BATCH)):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = loss_of(model, there(batch))
                if learner.number == 0 and place in (3, 4):
                    loss = loss * 1e30
                learner.backward(scaler.scale(loss))
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            assert learner.skipped >= 2 or learner.number
        ends[learner.number] = flat(model)

    ran = alone(loop)
    assert ran.counts.skipped >= 2
    assert ran.counts.committed + ran.counts.skipped == 24
    if strategy == "solo":
        return
    ran = simulated(loop, 2)
    assert ran.counts.committed + ran.counts.skipped == 24
    assert all(end.isfinite().all() for end in ends.values())
    assert strategy == "dynamic" or torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_guard_sees_what_is_not_finite(dtype: torch.dtype) -> None:
    guard = FiniteGuard()
    parameters = [nn.Parameter(torch.zeros(300, 300, dtype=dtype).cuda()) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 100.0)
    assert guard.allows(parameters)
    for bad in (float("nan"), float("inf"), -float("inf")):
        for place in (0, 150, 299):
            parameters[1].grad = torch.full_like(parameters[1], 100.0)
            parameters[1].grad[place, place] = bad
            assert not guard.allows(parameters)
    parameters[1].grad = torch.ones_like(parameters[1])
    assert guard.allows(parameters)
    guard.mark(torch.tensor(2.0).cuda(), lambda: parameters)
    assert guard.allows(parameters)
    guard.mark(torch.tensor(float("nan")).cuda(), lambda: parameters)
    assert not guard.allows(parameters)


class NoOptimizer:
    """Nothing to know."""

    def learning_rate(self) -> float:
        return 0.1

    def restart(self) -> None: ...

    def export(self) -> StateBundle:
        return StateBundle()

    def take_over(self, bundle: StateBundle) -> None: ...


def test_snapshots_beside_updates_are_never_torn() -> None:
    """The learner's thread runs far ahead of the device; an agent's snapshots wait for nobody.

    All numbers of the model are equal after each update, so a snapshot in the middle of one would
    have two values; and its value says how many steps and deltas are in it.
    """
    model = nn.ParameterList([nn.Parameter(torch.zeros(1 << 20)) for _ in range(8)]).cuda()
    node = Host().node(learner_address(0))
    storage = ModelStorage(model)
    replica = LearnerReplica(storage, NoOptimizer(), node, None)  # type: ignore[arg-type]
    busy = torch.randn(2048, 2048, device="cuda")
    worked, handed_in, errors = 0, 0.0, []
    over = threading.Event()

    def agent() -> None:
        nonlocal worked, handed_in
        try:
            while not over.is_set():
                delta = storage.new()
                delta.tensor.fill_(1024.0)
                replica.add(delta)
                handed_in += 1024.0
                snapshot = replica.snapshot()
                worked += snapshot.work.examples
                assert isinstance(snapshot.vector, TensorVector)
                found = snapshot.vector.tensor.unique().tolist()
                assert found == [handed_in + worked], (found, handed_in, worked)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=agent)
    thread.start()
    for step in range(400):
        for _ in range(3):
            busy = (busy @ busy).clamp(-1, 1)
        replica.begin_update()
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), 1.0)
        replica.end_update(TrainedWork([(step, step + 1)], 1))
        if step % 50 == 7:
            shown = TensorVector(torch.full((8 << 20,), -5.0))
            with replica.showing(shown):
                assert model[0].unique().tolist() == [-5.0]
    over.set()
    thread.join()
    if errors:
        raise errors[0]
    replica.end_update(TrainedWork())
    assert handed_in > 0
    end = storage.new()
    storage.read(end)()
    assert end.tensor.unique().tolist() == [400 + handed_in]


def test_pinned_memory_may_be_used_again_at_once() -> None:
    """A vector that is given back is filled anew only when the device has read it."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(1 << 22))]).cuda()
    storage = ModelStorage(model)
    busy = torch.randn(4096, 4096, device="cuda")
    for value in range(20):
        for _ in range(5):
            busy = (busy @ busy).clamp(-1, 1)
        vector = storage.new()
        assert vector.tensor.is_pinned()
        torch.cuda.synchronize()
        for _ in range(10):
            busy = (busy @ busy).clamp(-1, 1)
        vector.tensor.fill_(float(value))
        storage.write(vector)
        storage.update_ended()
        storage.recycle(vector)
        again = storage.new()
        storage.read(again)()
        assert again.tensor.unique().tolist() == [float(value)]
        storage.recycle(again)
