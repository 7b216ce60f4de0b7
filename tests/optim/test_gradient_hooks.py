"""What else people do with a model: every other backward pass, hooks, copies, moves."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unisono.errors import UserError
from unisono.optim import NaturalGradientSGD


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5)).double()


def minibatch() -> Tensor:
    return torch.randn(30, 7, generator=torch.Generator().manual_seed(1)).double()


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).sin().square().mean()
    return loss


def same_gradients(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a.grad, b.grad, rtol=1e-6, atol=1e-9) for a, b in pairs)


def of_the_input(model: nn.Module, x: Tensor) -> None:
    torch.autograd.grad(loss_of(model, x.requires_grad_()), x)


def of_one_weight(model: nn.Module, x: Tensor) -> None:
    torch.autograd.grad(loss_of(model, x), [next(model.parameters())])


def of_nothing(model: nn.Module, x: Tensor) -> None:
    loss_of(model, x)


def that_fails(model: nn.Module, x: Tensor) -> None:
    def fail(_: Tensor) -> None:
        raise ArithmeticError

    y = x.detach().clone().requires_grad_()
    y.register_hook(fail)
    with pytest.raises(ArithmeticError):
        loss_of(model, 2 * y).backward()
    model.zero_grad()


@pytest.mark.parametrize("extra", [of_the_input, of_one_weight, of_nothing, that_fails])
def test_rows_of_another_pass_are_not_in_the_next(
    extra: Callable[[nn.Module, Tensor], Any],
) -> None:
    model, plain, x = network(), network(), minibatch()
    optimizer = NaturalGradientSGD(model, 0.1, alpha=1e9)
    for _ in range(2):
        extra(model, 3 * x)
        loss_of(model, x).backward()
        loss_of(plain, x).backward()
        assert same_gradients(model, plain)
        optimizer.zero_grad()
        plain.zero_grad()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_inside_and_outside_a_checkpoint(reentrant: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 6).double()
    plain = copy.deepcopy(model)
    optimizer = NaturalGradientSGD(model, 0.1, alpha=1e9)
    x = torch.randn(10, 6).double().requires_grad_()
    for _ in range(2):
        for layer in (model, plain):
            inside = checkpoint(layer, layer(x).tanh(), use_reentrant=reentrant)
            loss_of(layer, inside).backward()
        assert same_gradients(model, plain)
        optimizer.zero_grad()
        plain.zero_grad()


@pytest.mark.parametrize("early", [True, False])
def test_hooks_of_others_may_change_what_goes_in_and_out(early: bool) -> None:
    model, plain, x = network(), network(), minibatch()
    if not early:
        keep = NaturalGradientSGD(model, 0.1, alpha=1e9)
    for one in (model, plain):
        one[0].register_forward_pre_hook(lambda _, args: (2 * args[0],))
        one[0].register_forward_hook(lambda _, args, output: 3 * output + 1)
    if early:
        keep = NaturalGradientSGD(model, 0.1, alpha=1e9)
    loss_of(model, x).backward()
    loss_of(plain, x).backward()
    assert same_gradients(model, plain)
    assert len(keep.state_dict()["fisher"]) == 2


def test_a_copy_of_the_optimizer_is_refused() -> None:
    optimizer = NaturalGradientSGD(network(), 0.1)
    for how in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UserError, match="state_dict"):
            how(optimizer)


def test_a_model_that_moves_takes_its_estimates_and_momentum_with_it() -> None:
    moved, stayed, x = network(), network(), minibatch()
    optimizers = [NaturalGradientSGD(m, 0.05, momentum=0.9) for m in (moved, stayed)]
    for dtype in (torch.float64, torch.float32, torch.float64):
        moved.to(dtype)
        for _ in range(6):
            for model, optimizer in zip((moved, stayed), optimizers, strict=True):
                loss_of(model, x.to(next(model.parameters()).dtype)).backward()
                optimizer.step()
                optimizer.zero_grad()
    for a, b in zip(moved.parameters(), stayed.parameters(), strict=True):
        assert a.dtype == torch.float64
        assert (a - b).norm() < 1e-5 * b.norm()
