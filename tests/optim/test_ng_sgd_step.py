"""The step: bounds, steps that are not finite, state, scalers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UserError
from unisono.optim import NaturalGradientSGD, ng_sgd
from unisono.optim.max_change import LayerStep, clear, take_step


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


def unbounded(parameters: list[Tensor], directions: list[Tensor], rates: list[float]) -> list[Any]:
    return [
        LayerStep(parameters=[p], directions=[d], rate=rate, max_change=0.0)
        for p, d, rate in zip(parameters, directions, rates, strict=True)
    ]


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.float32, torch.float64) * 2])
@pytest.mark.parametrize("rates", [[0.5, 0.5, 0.5], [0.5, 0.25, 0.5]])
def test_every_layer_moves_once_by_its_own_rate(dtypes: Any, rates: list[float]) -> None:
    generator = torch.Generator().manual_seed(0)
    before = [torch.randn(4, 3, generator=generator).to(dtype) for dtype in dtypes[:3]]
    directions = [torch.randn(4, 3, generator=generator).to(dtype) for dtype in dtypes[:3]]
    moved = [p.clone() for p in before]
    steps = unbounded(moved, directions, rates)
    for total in (0.0, 0.1):
        length = (
            sum(float(r * d.double().norm()) ** 2 for r, d in zip(rates, directions, strict=True))
            ** 0.5
        )
        factor = 1.0 if total == 0 else total / length
        wanted = [p - factor * r * d for p, r, d in zip(moved, rates, directions, strict=True)]
        assert bool(take_step(steps, total))
        assert all(torch.allclose(p, w, atol=1e-6) for p, w in zip(moved, wanted, strict=True))
    kept = [p.clone() for p in moved]
    directions[2][1, 1] = torch.inf
    assert not bool(take_step(steps, 0.0))
    assert all(torch.equal(p, k) for p, k in zip(moved, kept, strict=True))


def test_clearing_touches_nothing_where_the_step_was_finite() -> None:
    parameters = [torch.randn(5, 3), torch.randn(7).double(), torch.randn(4, 6), torch.zeros(2, 2)]
    parameters[3][0, 0] = -0.0
    past = [torch.randn_like(p) for p in parameters]
    past[2] = past[2].T.contiguous().T  # not laid out as its parameter
    for buffer, bad in zip(past, (torch.nan, torch.inf, -torch.inf, 1.0), strict=True):
        buffer[-1:] = bad
    kept = [(p.clone(), v.clone()) for p, v in zip(parameters, past, strict=True)]
    for finite in (True, False):
        clear(past, parameters, torch.tensor(finite))
        for p, v, (p_before, v_before) in zip(parameters, past, kept, strict=True):
            assert torch.equal(p, p_before) and torch.equal(p.signbit(), p_before.signbit())
            if finite:
                assert torch.equal(v.nan_to_num(7.0), v_before.nan_to_num(7.0))
            else:
                assert not bool(v.any())
    clear([], [], torch.tensor(False))


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(ng_sgd, "_is_batched", lambda device: True)


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("when", [0, 3])
def test_a_step_that_is_not_finite_is_not_taken_on_devices(
    bad: float, momentum: float, when: int
) -> None:
    test_a_step_that_is_not_finite_is_not_taken(bad, momentum, when)


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_momentum_that_overflows_is_cleared(dtype: torch.dtype) -> None:
    model = network(dtype)
    optimizer = NaturalGradientSGD(model, 0.1, momentum=0.9)
    train(model, optimizer, 0, 2, dtype)
    before = values(model)
    huge = 0.9 * torch.finfo(dtype).max
    for p in model.parameters():  # finite, but their sum with the momentum is not
        optimizer.state[p]["momentum_buffer"].fill_(huge)
        p.grad = torch.full_like(p, huge)
    optimizer.step()
    optimizer.zero_grad()
    assert not bool(optimizer.was_finite())
    assert all(torch.equal(a, b) for a, b in zip(before, values(model), strict=True))
    assert not any(bool(optimizer.state[p]["momentum_buffer"].any()) for p in model.parameters())
    train(model, optimizer, 2, 4, dtype)
    assert bool(optimizer.was_finite())
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert not torch.equal(before[0], values(model)[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("longest", [0.0, 0.02])
def test_the_step_is_that_of_sgd_shortened(
    momentum: float, decay: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for on_device in (False, True):
        monkeypatch.setattr(ng_sgd, "_is_batched", lambda device, on=on_device: on)
        model = network()
        how = {"momentum": momentum, "weight_decay": decay}
        optimizer = NaturalGradientSGD(
            model, 0.1, max_change=longest, max_change_total=1.5 * longest, **how
        )
        past = [torch.zeros_like(p) for p in values(model)]
        generator = torch.Generator().manual_seed(3)
        for step in range(8):
            before = values(model)
            gradients = [torch.randn(p.shape, generator=generator).double() for p in before]
            if step == 4:
                gradients[1][2] = torch.nan
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.grad = g.clone()
            optimizer.step()
            past = [
                momentum * v + g + decay * p
                for v, g, p in zip(past, gradients, before, strict=True)
            ]
            if step == 4:
                past = [torch.zeros_like(v) for v in past]
            lengths = [
                0.1 * float(torch.cat([v.flatten() for v in past[i : i + 2]]).norm())
                for i in (0, 2)
            ]
            factors = [min(1.0, longest / max(n, 1e-30)) if longest else 1.0 for n in lengths]
            total = sum((f * n) ** 2 for f, n in zip(factors, lengths, strict=True)) ** 0.5
            both = min(1.0, 1.5 * longest / max(total, 1e-30)) if longest else 1.0
            for place, (p, b, v) in enumerate(zip(values(model), before, past, strict=True)):
                wanted = b - both * factors[place // 2] * 0.1 * v
                assert torch.allclose(p, wanted, rtol=0, atol=1e-12), (on_device, step)


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_nothing_is_captured_before_momentum_is_there(momentum: float) -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1, momentum=momentum)
    x, y = minibatch(0)
    functional.cross_entropy(model(x), y).backward()
    optimizer.zero_grad()  # a step that was skipped
    assert (optimizer.replay_key() is None) == (momentum > 0)
    train(model, optimizer, 1, 2)
    assert optimizer.replay_key() is not None
