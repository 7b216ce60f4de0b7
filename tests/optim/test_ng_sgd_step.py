"""The step: bounds, steps that are not finite, state, scalers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UserError
from unisono.optim import NaturalGradientSGD
from unisono.optim.max_change import LayerStep, take_step


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)


def minibatch(
    seed: int, rows: int = 20, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator).to(dtype)
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    first: int,
    last: int,
    dtype: torch.dtype = torch.float64,
) -> None:
    for seed in range(first, last):
        x, y = minibatch(seed, dtype=dtype)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def changes(before: list[Tensor], model: nn.Module) -> list[float]:
    """The length of the change of each of the two layers."""
    moved = [(a - b).flatten() for a, b in zip(values(model), before, strict=True)]
    return [float(torch.cat(moved[i : i + 2]).norm()) for i in (0, 2)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_max_change_is_exact(momentum: float, dtype: torch.dtype) -> None:
    model = network(dtype)
    optimizer = NaturalGradientSGD(model, 1e3, momentum=momentum)
    near = 1e-6 if dtype == torch.float64 else 1e-5
    for seed in range(4):
        before = values(model)
        train(model, optimizer, seed, seed + 1, dtype)
        assert changes(before, model) == pytest.approx([0.75, 0.75], rel=near)
    optimizer.param_groups[1]["max_change"] = 0.0
    before = values(model)
    train(model, optimizer, 9, 10, dtype)
    first, second = changes(before, model)
    assert (first**2 + second**2) ** 0.5 == pytest.approx(2.0, rel=near)
    assert first < 0.75


def test_bounds_shorten_layers_first_and_then_all() -> None:
    def parameters() -> list[Tensor]:
        return [torch.zeros(3), torch.zeros(2, 2), torch.zeros(1)]

    moved = parameters()
    directions = [torch.tensor([3.0, 0.0, 4.0]), torch.ones(2, 2), torch.tensor([0.1])]
    steps = [
        LayerStep(parameters=[p], directions=[d], rate=rate, max_change=most)
        for p, d, rate, most in zip(
            moved, directions, (2.0, 1.0, 1.0), (1.0, 0.0, 9.0), strict=True
        )
    ]
    assert bool(take_step(steps, 0.0))
    assert [float(p.norm()) for p in moved] == pytest.approx([1.0, 2.0, 0.1])
    assert torch.allclose(moved[0], -directions[0] / 5)
    for p in moved:
        p.zero_()
    take_step(steps, 1.0)
    total = (1.0 + 4.0 + 0.01) ** 0.5
    assert [float(p.norm()) for p in moved] == pytest.approx([1 / total, 2 / total, 0.1 / total])
    for p in moved:
        p.zero_()
    directions[1][0, 0] = torch.nan
    assert not bool(take_step(steps, 1.0))
    assert all(torch.equal(p, torch.zeros_like(p)) for p in moved)


def test_zero_gradients_change_nothing() -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1)
    before = values(model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, values(model), strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("when", [0, 3])
def test_a_step_that_is_not_finite_is_not_taken(bad: float, momentum: float, when: int) -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1, momentum=momentum)
    train(model, optimizer, 0, when)
    before = values(model)
    x, y = minibatch(77)
    x[3, 2] = bad
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(before, values(model), strict=True))
    assert all(
        not bool(v["momentum_buffer"].any()) for v in optimizer.state_dict()["state"].values()
    )
    train(model, optimizer, when, when + 2)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert not torch.equal(before[0], values(model)[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_state_goes_on_exactly(momentum: float) -> None:
    model = network(torch.float32)
    optimizer = NaturalGradientSGD(model, 0.1, momentum=momentum)
    train(model, optimizer, 0, 15, torch.float32)
    other = copy.deepcopy(model)
    again = NaturalGradientSGD(other, 0.5, momentum=momentum)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 15, 25, torch.float32)
    train(other, again, 15, 25, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(values(model), values(other), strict=True))


def test_states_of_others_are_refused() -> None:
    model = network()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="another optimizer"):
        NaturalGradientSGD(model, 0.1).load_state_dict(plain.state_dict())
    optimizer = NaturalGradientSGD(model, 0.1)
    train(model, optimizer, 0, 1)
    with pytest.raises(UserError, match="rank"):
        NaturalGradientSGD(model, 0.1, rank_out=2).load_state_dict(optimizer.state_dict())


def test_restart_forgets_the_estimates_and_keeps_momentum() -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1, momentum=0.9)
    train(model, optimizer, 0, 5)
    momentum = optimizer.state_dict()["state"]
    optimizer.restart_fisher()
    assert not optimizer.state_dict()["fisher"]
    assert torch.equal(
        optimizer.state_dict()["state"][0]["momentum_buffer"], momentum[0]["momentum_buffer"]
    )
    train(model, optimizer, 5, 6)
    assert optimizer.state_dict()["fisher"][0]["input"]["t"] == 1


def test_a_grad_scaler_changes_nothing_and_skips() -> None:
    ends = []
    for scaled in (False, True):
        model = network()
        optimizer = NaturalGradientSGD(model, 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for seed in range(12):
            x, y = minibatch(seed)
            loss = functional.cross_entropy(model(x), y)
            if scaled and seed == 7:
                scaler.scale(loss * torch.inf).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                assert scaler.get_scale() == 512.0
                loss = functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        ends.append(values(model))
    # Not to the last bit: t counts the minibatch that was skipped, and a floor is absolute.
    assert all(torch.allclose(a, b, rtol=5e-2, atol=5e-3) for a, b in zip(*ends, strict=True))


def test_it_learns_faster_than_sgd_where_inputs_are_correlated() -> None:
    generator = torch.Generator().manual_seed(1)
    turn, _ = torch.linalg.qr(torch.randn(40, 40, generator=generator))
    mixing = turn * torch.logspace(0.7, -0.7, 40) @ turn.T
    teacher = torch.randn(40, 4, generator=generator)
    white = torch.randn(151, 128, 40, generator=generator)
    losses = []
    for natural in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 4))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if natural:
            optimizer = NaturalGradientSGD(model, 0.2)
        for x in white:
            loss = functional.cross_entropy(model(x @ mixing), (x @ teacher).argmax(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] < losses[1] - 0.05, losses
