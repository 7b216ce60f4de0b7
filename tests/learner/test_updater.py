"""The user's optimizers on slices of the parameters take the steps that they take on the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from unisono.errors import UserError
from unisono.fabric import TensorVector
from unisono.learner.updater import SliceUpdater

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(33, 21), nn.Linear(21, 7), nn.Linear(7, 3, bias=False))


def flat(parameters: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters])


def groups(net: nn.Module) -> list[dict[str, Any]]:
    first, *rest = net.parameters()
    return [{"params": rest}, {"params": [first], "lr": 0.003}]


@pytest.mark.parametrize("cuts", [[], [400], [1, 33 * 21 + 5, 800]], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slices_step_as_the_model_does(name: str, cuts: list[int]) -> None:
    there, here = model(), model()
    optimizer, watched = OPTIMIZERS[name](groups(there)), OPTIMIZERS[name](groups(here))
    values = TensorVector(flat(here.parameters()))
    edges = [0, *cuts, len(values)]
    parts = [
        SliceUpdater([watched], list(here.parameters()), values.slice(a, b), a)
        for a, b in itertools.pairwise(edges)
    ]
    for step in range(5):
        rates = [0.1 / (step + 1), 0.02]
        gradient = torch.randn(len(values))
        place = 0
        for parameter in there.parameters():
            count = parameter.numel()
            parameter.grad = gradient[place : place + count].view(parameter.shape).clone()
            place += count
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.step()
        for (a, b), part in zip(itertools.pairwise(edges), parts, strict=True):
            part.step(TensorVector(gradient[a:b].clone()), rates)
    expected = flat(there.parameters())
    if cuts:
        torch.testing.assert_close(values.tensor, expected, rtol=1e-6, atol=1e-7)
    else:
        assert torch.equal(values.tensor, expected)


def test_a_missing_gradient_moves_nothing() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    values = TensorVector(flat(net.parameters()))
    before = values.tensor.clone()
    updater = SliceUpdater([optimizer], list(net.parameters()), values, 0)
    gradient = torch.full((len(values),), -0.0)
    gradient[:100] = 1.0
    updater.step(TensorVector(gradient), [0.1])
    first = next(net.parameters()).numel()
    assert not torch.equal(values.tensor[:first], before[:first])
    assert torch.equal(values.tensor[first:], before[first:])


def test_what_it_remembers_goes_on() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    values = TensorVector(flat(net.parameters()))
    updater = SliceUpdater([optimizer], list(net.parameters()), values, 0)
    updater.step(TensorVector(torch.ones(len(values))), [0.1])
    twin = TensorVector(values.tensor.clone())
    again = SliceUpdater([optimizer], list(net.parameters()), twin, 0)
    again.load_state(updater.state())
    for one in (updater, again):
        one.step(TensorVector(torch.ones(len(values))), [0.1])
    assert torch.equal(values.tensor, twin.tensor)


class Odd(torch.optim.Optimizer):
    """One that may look at whole tensors."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.sub_(group["lr"] * parameter.grad / parameter.grad.norm())


def test_an_unknown_optimizer_gets_whole_tensors_or_none() -> None:
    net = model()
    values = TensorVector(flat(net.parameters()))
    parameters = list(net.parameters())
    SliceUpdater([Odd(parameters)], parameters, values, 0).step(
        TensorVector(torch.ones(len(values))), [0.1]
    )
    with pytest.raises(UserError, match="Odd may need whole tensors and a shard cuts them: use"):
        SliceUpdater([Odd(parameters)], parameters, values.slice(0, 100), 0)
