"""`nn.LSTM` under natural gradient: the same numbers as its kernel, and the rows of its gates."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from unisono.optim import NaturalGradientSGD

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without biases": {"bias": False},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True, "num_layers": 2},
    "projected": {"proj_size": 4, "num_layers": 2},
    "projected, both directions": {"proj_size": 4, "bidirectional": True},
}
GIVEN = ("batch", "one example", "packed", "packed, unsorted", "with states")


def made(shape: str) -> nn.LSTM:
    torch.manual_seed(3)
    return nn.LSTM(5, 7, dtype=torch.float64, **SHAPES[shape])


def given(module: nn.LSTM, how: str) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(6, 3, 5, generator=generator, dtype=torch.float64)
    x = x.transpose(0, 1) if module.batch_first else x
    if how == "one example":
        return (x[0] if module.batch_first else x[:, 0],)
    if how.startswith("packed"):
        sizes = torch.tensor([6, 4, 1] if how == "packed" else [2, 6, 3])
        return (
            pack_padded_sequence(
                x, sizes, batch_first=module.batch_first, enforce_sorted=how == "packed"
            ),
        )
    if how == "with states":
        ways = module.num_layers * (2 if module.bidirectional else 1)
        r = torch.randn(ways, 3, module.proj_size or 7, generator=generator, dtype=torch.float64)
        c = torch.randn(ways, 3, 7, generator=generator, dtype=torch.float64)
        return x, (r, c)
    return (x,)


def flat(result: Any) -> Tensor:
    """All numbers of an LSTM's result, weighted so that each one counts in its own way."""
    out, (r, c) = result
    whole = out.data if isinstance(out, PackedSequence) else out
    numbers = torch.cat([whole.flatten(), r.flatten(), c.flatten()])
    return numbers * torch.linspace(0.5, 2.0, len(numbers), dtype=numbers.dtype)


@pytest.mark.parametrize("how", GIVEN)
@pytest.mark.parametrize("shape", SHAPES)
def test_step_by_step_it_computes_what_its_kernel_computes(shape: str, how: str) -> None:
    theirs, ours = made(shape), made(shape)
    optimizer = NaturalGradientSGD(ours, 0.1, alpha=1e14)  # so much smoothing is plain SGD
    arguments = given(theirs, how)
    wanted, found = flat(theirs(*arguments)), flat(ours(*arguments))
    torch.testing.assert_close(found, wanted)
    wanted.square().sum().backward()
    found.square().sum().backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad)
    assert all("plain SGD" not in line for line in optimizer.describe())


class Cell(nn.Module):
    """The same LSTM of linear layers, which are known to be preconditioned as they should."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.inward = nn.Linear(5, 28, dtype=torch.float64)
        self.recurrent = nn.Linear(4, 28, dtype=torch.float64)
        self.projection = nn.Linear(7, 4, bias=False, dtype=torch.float64)
        self.pairs = [
            (self.inward.weight, lstm.weight_ih_l0),
            (self.inward.bias, lstm.bias_ih_l0),
            (self.recurrent.weight, lstm.weight_hh_l0),
            (self.recurrent.bias, lstm.bias_hh_l0),
            (self.projection.weight, lstm.weight_hr_l0),
        ]
        with torch.no_grad():
            for own, theirs in self.pairs:
                own.copy_(theirs)

    def forward(self, x: Tensor) -> Tensor:
        r, c = x.new_zeros(x.shape[1], 4), x.new_zeros(x.shape[1], 7)
        outputs = []
        for drive in self.inward(x):
            i, f, g, o = (drive + self.recurrent(r)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            r = self.projection(o.sigmoid() * c.tanh())
            outputs.append(r)
        return torch.stack(outputs)


def test_its_gates_step_as_linear_layers_do() -> None:
    torch.manual_seed(3)
    lstm = nn.LSTM(5, 7, proj_size=4, dtype=torch.float64)
    cell = Cell(lstm)
    ours = NaturalGradientSGD(lstm, 0.1, momentum=0.5, max_change=0, max_change_total=0)
    theirs = NaturalGradientSGD(cell, 0.1, momentum=0.5, max_change=0, max_change_total=0)
    for step in range(14):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(6, 9, 5, generator=generator, dtype=torch.float64)
        lstm(x)[0].square().mean().backward()
        cell(x).square().mean().backward()
        for own, parameter in cell.pairs:
            torch.testing.assert_close(parameter.grad, own.grad, rtol=1e-6, atol=1e-12)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()


def test_validation_uses_the_kernel_and_copies_are_ordinary() -> None:
    model = nn.Sequential(nn.LSTM(5, 7))
    optimizer = NaturalGradientSGD(model, 0.1)
    x = torch.randn(6, 3, 5)
    tapped = model(x)[0]
    assert "Lstm" not in str(tapped.grad_fn)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], tapped)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is nn.LSTM
        torch.testing.assert_close(other(x)[0], tapped)
    for parameter in list(model.parameters())[:1]:
        parameter.requires_grad_(False)  # some are frozen: autograd makes the others' gradients
    model(x)[0].sum().backward()
    assert model[0].weight_ih_l0.grad is None and model[0].weight_hh_l0.grad is not None
    optimizer.detach()
    assert type(model[0]) is nn.LSTM


def test_an_optimizer_that_is_gone_leaves_an_ordinary_lstm() -> None:
    model = nn.LSTM(5, 7)
    NaturalGradientSGD(model, 0.1)
    x = torch.randn(6, 3, 5)
    model(x)[0].sum().backward()
    assert type(model) is nn.LSTM
    assert all(p.grad is not None for p in model.parameters())
