"""Layers that move to the device go on as if they had stayed; here the device is the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.optim import NaturalGradientSGD
from unisono.optim import housing as rules

USUAL = 64


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The host may house layers, too, and work is not captured but done; who gained by it."""
    housed: list[Tensor] = []
    make = rules.Residence.gradients

    def note(house: rules.Residence, weight: Tensor, *rest: object) -> object:
        housed.append(weight)
        return make(house, weight, *rest)  # type: ignore[arg-type]

    plain = rules.Housing.__init__

    def begin(self: rules.Housing, *args: object, **options: object) -> None:
        options |= {"capture": lambda work: work, "movable": lambda weight: True}
        plain(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rules.Residence, "gradients", note)
    monkeypatch.setattr(rules.Housing, "__init__", begin)
    yield housed


class Net(nn.Module):
    """A convolution, a layer applied twice, one without a bias, one with one output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Conv1d(6, 30, 3)
        self.twice = nn.Linear(30, 30)
        self.bare = nn.Linear(30, 5, bias=False)
        self.single = nn.Linear(30, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu().mean(2)
        x = self.twice(self.twice(x).relu()).relu()
        out: Tensor = self.bare(x) * self.single(x).sigmoid()
        return out


class Loop:
    """One optimizer in a loop."""

    def __init__(self, **options: float) -> None:
        self.model = Net()
        self.optimizer = NaturalGradientSGD(self.model, 0.05, momentum=0.5, **options)  # type: ignore[arg-type]

    def backward(self, x: Tensor, y: Tensor) -> None:
        functional.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def stay(**options: float) -> Loop:
    """A loop whose layers never move."""
    loop = Loop(**options)
    loop.optimizer._housing._movable = lambda weight: False
    return loop


def minibatches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for t in range(count):
        rows = USUAL if (t + 1) % 9 else 40  # the last of an epoch is smaller
        spread = torch.logspace(0, -1, 6).view(6, 1)
        x = torch.randn(rows, 6, 9, generator=generator) * spread
        yield x, torch.randint(0, 5, (rows,), generator=generator)


def difference(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(
        float((p.grad - q.grad).norm() / p.grad.norm())
        for p, q in pairs
        if p.grad is not None and q.grad is not None
    )


def test_layers_that_have_moved_get_the_same_gradients(no_graphs: list[Tensor]) -> None:
    here, there = stay(), Loop()
    for x, y in minibatches(40):
        here.backward(x, y)
        there.backward(x, y)
        assert difference(here.model, there.model) < 5e-5
        here.step()
        there.step()
    model = there.model
    moved = {model.first.weight, model.twice.weight, model.bare.weight}
    assert set(no_graphs) == moved  # one output: its rows are left alone
    assert len(no_graphs) == 3 * 29  # from the twelfth step on


def test_accumulation_shows_each_part_to_the_estimates(no_graphs: list[Tensor]) -> None:
    here, there = stay(update_period=1), Loop(update_period=1)
    for t, (x, y) in enumerate(minibatches(60)):
        here.backward(x, y)
        there.backward(x, y)
        if t % 2:
            assert difference(here.model, there.model) < 5e-5
            here.step()
            there.step()
    assert no_graphs


def test_estimates_travel_in_the_state(no_graphs: list[Tensor]) -> None:
    here, there = stay(), Loop()
    for t, (x, y) in enumerate(minibatches(60)):
        if t == 30:
            assert no_graphs
            fresh = Loop()
            fresh.model.load_state_dict(there.model.state_dict())
            fresh.optimizer.load_state_dict(there.optimizer.state_dict())
            there = fresh
        if t == 45:
            for loop in (here, there):
                loop.optimizer.restart_fisher()
        if t == 46:  # the same by somebody who knows nothing of it
            for loop in (here, there):
                loop.optimizer.state.clear()
        here.backward(x, y)
        there.backward(x, y)
        assert difference(here.model, there.model) < 5e-5
        here.step()
        there.step()


def test_rows_of_another_kind_move_out_and_in_again(no_graphs: list[Tensor]) -> None:
    here, there = stay(), Loop()
    kinds = []
    for t, (x, y) in enumerate(minibatches(60)):
        with torch.autocast("cpu", torch.bfloat16, enabled=20 <= t < 35):
            here.backward(x, y)
            there.backward(x, y)
        house = there.optimizer._housing._house
        kinds.append(house.dtype if house is not None else None)
        assert difference(here.model, there.model) < (5e-5 if t < 20 else 0.3)
        here.step()
        there.step()
    assert kinds[19] is torch.float32 and kinds[20] is None
    assert kinds[33] is torch.bfloat16 and kinds[-1] is torch.float32


def test_without_graphs_it_goes_on_as_before(no_graphs: list[Tensor]) -> None:
    here, there = stay(), Loop()

    def refuse(work: object) -> object:
        raise RuntimeError("out of memory\nand much more")

    there.optimizer._housing._capture = refuse  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="without CUDA graphs: out of memory$") as told:
        for x, y in minibatches(16):
            for loop in (here, there):
                loop.backward(x, y)
            assert difference(here.model, there.model) == 0.0
            here.step()
            there.step()
    assert len(told) == 1 and not no_graphs
