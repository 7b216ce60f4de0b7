"""What models do to a learner: types, ties, frozen and unused weights, buffers, recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from support.loops import (
    BATCH,
    CLASSES,
    DYNAMIC,
    INPUTS,
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
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.placement import find_placement

Together = Callable[..., Ran]


def train(
    model: nn.Module,
    strategy: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[unisono.Learner], None] = lambda learner: None,
    epochs: int = 2,
) -> unisono.Learner:
    optimizer = optimizer or sgd(model)
    with unisono.Learner(model, optimizer, strategy) as learner:
        for batch in learner.draw(dataset(), epochs=epochs, batch_size=BATCH):
            learner.step(loss_of(model, batch))
            after(learner)
    return learner


@pytest.mark.parametrize("strategy", ["solo", *SHARING])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_both_ways(strategy: str, set_to_none: bool) -> None:
    plain = network()
    optimizer = sgd(plain)
    for batch in plain_batches():
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(plain, batch).backward()
        optimizer.step()
    model = network()

    def loop() -> None:
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, SHARING.get(strategy, strategy)) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                optimizer.zero_grad(set_to_none=set_to_none)
                learner.backward(loss_of(model, batch))
                optimizer.step()

    ran = alone(loop)
    assert torch.equal(flat(model), flat(plain))
    assert ran.counts.committed == 13 and ran.counts.skipped == 0


@pytest.mark.parametrize("strategy", SHARING)
def test_zero_grad_in_company(strategy: str, together: Together) -> None:
    ends: list[torch.Tensor] = []
    for set_to_none in (True, False):

        def loop(set_to_none: bool = set_to_none) -> None:
            model = network()
            optimizer = sgd(model)
            with unisono.Learner(model, optimizer, SHARING[strategy]) as learner:
                for batch in learner.draw(dataset(), batch_size=BATCH):
                    learner.backward(loss_of(model, batch))
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=set_to_none)
            ends.append(flat(model))

        ran = together(loop, 2)
        assert ran.counts.committed == 13 and ran.counts.skipped == 0
    if strategy not in DYNAMIC:
        assert all(torch.equal(ends[0], end) for end in ends)


def test_the_model_may_change_its_type_after_the_learner_was_made() -> None:
    plain = network().double()
    optimizer = sgd(plain)
    for x, y in plain_batches():
        loss_of(plain, (x.double(), y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for strategy in ["solo", *SHARING.values()]:
        model = network()

        def loop(model: nn.Module = model, strategy: Any = strategy) -> None:
            optimizer = sgd(model)
            with unisono.Learner(model, optimizer, strategy) as learner:
                model.double()
                for x, y in learner.draw(dataset(), batch_size=BATCH):
                    learner.step(loss_of(model, (x.double(), y)))

        alone(loop)
        assert torch.equal(flat(model), flat(plain))


def test_double_precision_is_exchanged_in_double_precision() -> None:
    """Two learners with minibatches of 8 make the steps of one with 16."""
    plain = network().double()
    optimizer = sgd(plain)
    for x, y in plain_batches(2, batch=2 * BATCH, examples=96):
        loss_of(plain, (x.double(), y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    ends = []

    def loop() -> None:
        model = network().double()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, "allreduce") as learner:
            for x, y in learner.draw(dataset(96), epochs=2, batch_size=BATCH):
                learner.step(loss_of(model, (x.double(), y)))
        ends.append(flat(model))

    simulated(loop, 2)
    assert torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], flat(plain), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("strategy", SHARING)
def test_half_precision_is_exchanged_in_float32(strategy: str, together: Together) -> None:
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network().bfloat16()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, SHARING[strategy]) as learner:
            for x, y in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, (x.bfloat16(), y)).float())
        ends[learner.number] = flat(model)

    together(loop, 3)
    assert ends[0].dtype is torch.bfloat16
    if strategy != "dynamic":
        assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


class Tied(nn.Module):
    """The output layer is the input layer, turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, INPUTS, bias=False)
        self.second = nn.Linear(INPUTS, INPUTS, bias=False)
        self.second.weight = self.first.weight
        self.out = nn.Linear(INPUTS, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.second(torch.tanh(self.first(x))))
        return logits


@pytest.mark.parametrize("strategy", SHARING)
def test_tied_weights_stay_tied(strategy: str, together: Together) -> None:
    def made() -> Tied:
        generator = torch.Generator().manual_seed(3)
        model = Tied()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
        return model

    plain = made()
    optimizer = sgd(plain)
    for batch in plain_batches(2):
        loss_of(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    single = made()
    alone(lambda: train(single, SHARING[strategy]) and None)
    assert torch.equal(flat(single), flat(plain))
    ends = []

    def loop() -> None:
        model = made()
        train(model, SHARING[strategy])
        assert model.second.weight is model.first.weight
        ends.append(flat(model))

    together(loop, 2)
    assert len(ends) == 2 and (strategy == "dynamic" or torch.equal(ends[0], ends[1]))


@pytest.mark.parametrize("strategy", SHARING)
def test_frozen_weights_do_not_change_by_a_bit(strategy: str) -> None:
    """Each begins with others; all take over the first one's, and no mean rounds them."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network(seed=10 + find_placement().number)
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        learner = train(model, SHARING[strategy], optimizer=optimizer)
        ends[learner.number] = flat(model[0])
        assert all(p.grad is None for p in model[0].parameters())

    simulated(loop, 3, slowness={1: 1.3, 2: 2.1})
    assert len(ends) == 3
    assert all(torch.equal(end, flat(network(seed=10)[0])) for end in ends.values())


class Branches(nn.Module):
    """One branch nobody uses, one is used now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(INPUTS, CLASSES)
        self.sometimes = nn.Linear(INPUTS, CLASSES)
        self.never = nn.Linear(INPUTS, CLASSES)
        self.detour = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.used(x)
        return y + self.sometimes(x) if self.detour else y


def branches() -> Branches:
    generator = torch.Generator().manual_seed(2)
    model = Branches()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def decaying(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.2)


@pytest.mark.parametrize("strategy", ["solo", *SHARING])
def test_unused_parameters_stay_without_gradient(strategy: str) -> None:
    """With weight decay a gradient of zeros and none are not the same."""
    plain = branches()
    optimizer = decaying(plain)
    for place, batch in enumerate(plain_batches(2)):
        plain.detour = place % 3 == 0
        loss_of(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = branches()

    def loop() -> None:
        optimizer = decaying(model)
        with unisono.Learner(model, optimizer, SHARING.get(strategy, strategy)) as learner:
            dynamic = learner.draw(dataset(), epochs=2, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                model.detour = place % 3 == 0
                learner.backward(loss_of(model, batch))
                assert model.never.weight.grad is None
                assert (model.sometimes.weight.grad is not None) == model.detour
                optimizer.step()
                optimizer.zero_grad()

    alone(loop)
    assert torch.equal(flat(model), flat(plain))
    assert torch.equal(model.never.weight, branches().never.weight)


def test_all_reduced_learners_agree_on_what_is_unused(together: Together) -> None:
    """What one learner uses all get gradients for; where its gradient is 0, too."""
    ends = []

    def loop() -> None:
        model = branches()
        optimizer = decaying(model)
        with unisono.Learner(model, optimizer, "allreduce") as learner:
            dynamic = learner.draw(dataset(96), epochs=2, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                loss = loss_of(model, batch)
                if place % 2 == 0 and learner.number == 1:
                    factor = 0.0 if place % 4 == 0 else 1.0
                    loss = loss + factor * model.sometimes(batch[0]).square().mean()
                learner.backward(loss)
                assert model.never.weight.grad is None
                assert (model.sometimes.weight.grad is not None) == (place % 2 == 0)
                optimizer.step()
                optimizer.zero_grad()
        ends.append((flat(model), model.never.weight.detach().clone()))

    together(loop, 2)
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], branches().never.weight)


class Recurrent(nn.Module):
    """Reads its inputs one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 5, num_layers=2, batch_first=True)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x.unsqueeze(-1))
        logits: torch.Tensor = self.out(states[:, -1])
        return logits


@pytest.mark.parametrize("strategy", ["solo", *SHARING])
def test_lstm(strategy: str) -> None:
    def made() -> Recurrent:
        torch.manual_seed(4)
        return Recurrent()

    plain = made()
    optimizer = sgd(plain)
    for batch in plain_batches():
        loss_of(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = made()
    alone(lambda: train(model, SHARING.get(strategy, strategy), epochs=1) and None)
    assert torch.equal(flat(model), flat(plain))
    if strategy == "solo":
        return
    ends = []

    def loop() -> None:
        model = made()
        train(model, SHARING[strategy], epochs=1)
        model.lstm.flatten_parameters()
        ends.append(flat(model))

    simulated(loop, 3)
    assert len(ends) == 3 and (strategy == "dynamic" or torch.equal(ends[0], ends[2]))


@pytest.mark.parametrize("strategy", SHARING)
def test_buffers_of_batch_norm(strategy: str, together: Together) -> None:
    """Averaged with the parameters, or each learner's own; the count is always its own."""
    means: dict[int, torch.Tensor] = {}
    tracked: dict[int, int] = {}

    def loop() -> None:
        model = network(norm=True)
        number = train(model, SHARING[strategy]).number
        norm = model[2]
        assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
        means[number] = norm.running_mean.clone()
        tracked[number] = int(norm.num_batches_tracked)  # type: ignore[arg-type]

    together(loop, 2)
    same = torch.equal(means[0], means[1])
    if strategy == "allreduce":
        assert not same
    elif strategy == "static":
        assert same
    else:
        assert torch.allclose(means[0], means[1])
    assert sum(tracked.values()) == 26


def test_the_running_mean_is_averaged_with_weights() -> None:
    """A last round of one minibatch: only its learner moves, so its statistics count alone."""
    means: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def loop() -> None:
        model = network(norm=True)
        norm = model[2]
        optimizer = sgd(model)
        strategy = unisono.Averaging(every=BATCH, sharding=unisono.Sharding.STATIC)
        with unisono.Learner(model, optimizer, strategy) as learner:
            for batch in learner.draw(dataset(3 * BATCH), batch_size=BATCH):
                learner.backward(loss_of(model, batch))
                means[learner.number].append(norm.running_mean.clone())
                optimizer.step()
                optimizer.zero_grad()
        means[learner.number].append(norm.running_mean.clone())

    simulated(loop, 2)
    (first, third, end_0), (second, end_1) = means[0], means[1]
    before = (first + second) / 2
    assert torch.equal(end_0, end_1)
    assert torch.equal(end_0, third)
    assert not torch.allclose(third, before)


@pytest.mark.parametrize("strategy", SHARING)
def test_a_mask_is_no_statistic(strategy: str, together: Together) -> None:
    """A buffer with infinities stays as it is, and is no reason to leave."""
    mask = torch.full((CLASSES,), -float("inf"))
    mask[:2] = 0
    ends = []

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.register_buffer("mask", mask.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.net(x) + self.mask.clamp(min=-10)
            return logits

    def loop() -> None:
        model = Masked()
        train(model, SHARING[strategy])
        assert torch.equal(model.mask, mask)
        ends.append(flat(model))

    together(loop, 2)
    assert all(end.isfinite().all() for end in ends) and len(ends) == 2


def test_each_simulated_learner_has_generators_of_its_own() -> None:
    """What a learner draws does not depend on how the others are scheduled."""
    draws: list[dict[int, list[float]]] = []
    for seed in range(4):
        dynamic: dict[int, list[float]] = {}

        def loop(dynamic: dict[int, list[float]] = dynamic) -> None:
            model = network(dropout=0.5)
            optimizer = sgd(model)
            with unisono.Learner(model, optimizer, STATIC_AVERAGING) as learner:
                torch.manual_seed(50 + learner.number)
                numbers = dynamic[learner.number] = []
                for batch in learner.draw(dataset(96), batch_size=BATCH):
                    learner.step(loss_of(model, batch))
                    numbers.append(float(torch.rand(())))

        simulated(loop, 3, scheduler=SeededScheduler(seed), slowness={seed % 3: 3.0})
        draws.append(dynamic)
    assert all(dynamic == draws[0] for dynamic in draws)
    assert draws[0][0] != draws[0][1]
    assert len(draws[0][0]) == 4
