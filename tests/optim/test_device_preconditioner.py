"""The implementation for GPUs, run on the CPU, against the exact one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UserError
from unisono.optim import NaturalGradientSGD, ng_sgd
from unisono.optim.device_preconditioner import DevicePreconditioner, Work
from unisono.optim.exact_preconditioner import ExactPreconditioner

USUAL = 64


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

    def __init__(self, dtype: torch.dtype = torch.float32, **options: float) -> None:
        self.model = Net().to(dtype)
        self.optimizer = NaturalGradientSGD(self.model, 0.05, momentum=0.5, **options)  # type: ignore[arg-type]

    def backward(self, x: Tensor, y: Tensor) -> None:
        x = x.to(self.model.bare.weight.dtype)
        functional.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Capture:
    """Does what `captured` does, without a graph; counts."""

    def __init__(self) -> None:
        self.count = self.replays = 0

    def __call__(self, work: Work) -> Work:
        self.count += 1
        for _ in range(3):
            work()

        def replay() -> None:
            self.replays += 1
            work()

        return replay


Pair = Callable[..., tuple[Loop, Loop]]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Makes a loop with the exact implementation, and one with that of devices."""

    def make(*, capture: Any = None, **options: Any) -> tuple[Loop, Loop]:
        exact = Loop(**options)
        monkeypatch.setattr(ng_sgd, "_is_batched", lambda device: True)
        made = partial(DevicePreconditioner, capture=capture)
        monkeypatch.setattr(ng_sgd, "DevicePreconditioner", made)
        batched = Loop(**options)
        monkeypatch.undo()
        for loop, kind in ((exact, ExactPreconditioner), (batched, DevicePreconditioner)):
            (used,) = set(loop.optimizer._preconditioners.values())
            assert isinstance(used, kind)
        return exact, batched

    return make


def minibatches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for t in range(count):
        rows = USUAL if (t + 1) % 9 else 40  # the last of an epoch is smaller
        spread = torch.logspace(0, -1, 6).view(6, 1)
        x = torch.randn(rows, 6, 9, generator=generator) * spread
        yield x, torch.randint(0, 5, (rows,), generator=generator)


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest relative difference of gradients; infinite where one is not a number."""
    worst = torch.zeros(())
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        worst = torch.maximum(worst, (p.grad - q.grad).norm() / p.grad.norm())
    return float(worst.nan_to_num(torch.inf))


@pytest.mark.parametrize("capturing", [False, True])
def test_gradients_are_the_exact_ones_from_the_first_step_on(pair: Pair, capturing: bool) -> None:
    capture = Capture() if capturing else None
    exact, batched = pair(capture=capture)
    for x, y in minibatches(40):
        for loop in (exact, batched):
            loop.backward(x, y)
        assert difference(exact.model, batched.model) < 5e-5
        for loop in (exact, batched):
            loop.step()
    if capture is not None:
        # Two shapes of four layers, updating or not; and one update of all.
        assert capture.count == 2 * 4 * 2 + 1
        assert capture.replays > 4 * 30


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"dtype": torch.float64}, 1e-5),
        ({"alpha": 0.0}, 1e-4),
        ({"reduction": "sum"}, 5e-5),
        ({"dtype": torch.bfloat16}, 0.02),
    ],
    ids=str,
)
def test_other_settings(pair: Pair, options: dict[str, Any], tolerance: float) -> None:
    exact, batched = pair(**options)
    for x, y in minibatches(20):
        for loop in (exact, batched):
            loop.backward(x, y)
        assert difference(exact.model, batched.model) < tolerance
        batched.model.load_state_dict(exact.model.state_dict())
        for loop in (exact, batched):
            loop.step()


@pytest.mark.parametrize("capturing", [False, True])
def test_accumulation_shows_each_part_to_the_estimates(pair: Pair, capturing: bool) -> None:
    exact, batched = pair(update_period=1, capture=Capture() if capturing else None)
    for t, (x, y) in enumerate(minibatches(60)):
        for loop in (exact, batched):
            loop.backward(x, y)
        if t % 2:
            assert difference(exact.model, batched.model) < 5e-5
            for loop in (exact, batched):
                loop.step()


def test_a_resumed_run_ends_with_the_same_bytes(pair: Pair) -> None:
    (_, batched), (_, resumed) = pair(update_period=1), pair(update_period=1)
    for t, (x, y) in enumerate(minibatches(30)):
        batched.backward(x, y)
        if t > 15:
            resumed.backward(x, y)
            resumed.step()
        if t == 15:  # before the step: an update is pending
            state = batched.optimizer.state_dict()
        batched.step()
        if t == 15:
            state["state"] = copy.deepcopy(batched.optimizer.state_dict()["state"])
            resumed.model.load_state_dict(batched.model.state_dict())
            resumed.optimizer.load_state_dict(state)
    for p, q in zip(batched.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_states_go_from_one_implementation_to_the_other(pair: Pair) -> None:
    exact, batched = pair()
    for t, (x, y) in enumerate(minibatches(60)):
        if t in (20, 30):
            states = [copy.deepcopy(loop.optimizer.state_dict()) for loop in (exact, batched)]
            for loop, state in zip((batched, exact), states, strict=True):
                loop.optimizer.load_state_dict(state)
        if t == 45:
            for loop in (exact, batched):
                loop.optimizer.restart_fisher()
        if t == 46:  # what `restart_optimizer` of averaging does
            for loop in (exact, batched):
                loop.optimizer.state.clear()
        for loop in (exact, batched):
            loop.backward(x, y)
        assert difference(exact.model, batched.model) < 5e-5
        for loop in (exact, batched):
            loop.step()
    fisher = [loop.optimizer.state_dict()["fisher"] for loop in (exact, batched)]
    counts = [{i: s["input"]["t"] for i, s in f.items()} for f in fisher]
    assert counts[0] == counts[1] and set(counts[0].values()) == {14}


def test_rows_may_change_their_dtype(pair: Pair) -> None:
    exact, batched = pair(capture=Capture())
    for t, (x, y) in enumerate(minibatches(60)):
        with torch.autocast("cpu", torch.bfloat16, enabled=20 <= t < 35):
            for loop in (exact, batched):
                loop.backward(x, y)
        assert difference(exact.model, batched.model) < (5e-5 if t < 20 else 0.3)
        for loop in (exact, batched):
            loop.step()


@pytest.mark.parametrize("bad", [0, 5])
def test_a_minibatch_that_is_not_finite_changes_nothing(pair: Pair, bad: int) -> None:
    exact, batched = pair(capture=Capture())
    for t, (x, y) in enumerate(minibatches(14)):
        if t == bad:
            x[3, 2] = torch.nan
        for loop in (exact, batched):
            loop.backward(x, y)
        if t != bad:
            assert difference(exact.model, batched.model) < 5e-5
        for loop in (exact, batched):
            loop.step()


def test_without_graphs_it_goes_on(pair: Pair) -> None:
    def refuse(work: Work) -> Work:
        work()
        raise RuntimeError("out of memory\nand much more")

    (_, plain), (_, refused) = pair(), pair(capture=refuse)
    with pytest.warns(UserWarning, match="without CUDA graphs: out of memory$") as told:
        for x, y in minibatches(16):
            for loop in (plain, refused):
                loop.backward(x, y)
            assert difference(plain.model, refused.model) == 0.0
            plain.step()
            refused.step()
    assert len(told) == 1


def test_a_model_that_left_the_device_is_refused(pair: Pair) -> None:
    _, batched = pair()
    for used in batched.optimizer._preconditioners.values():
        used.device = torch.device("cuda", 1)  # type: ignore[attr-defined]
    ((x, y),) = minibatches(1)
    with pytest.raises(UserError, match="cuda:1 when the optimizer was made and is on cpu now"):
        batched.backward(x, y)


def test_a_layer_without_rows_has_no_gradient(pair: Pair) -> None:
    _, batched = pair()
    batched.model(torch.zeros(0, 6, 9)).sum().backward()
    assert all(not bool(p.grad.any()) for p in batched.model.parameters())
    batched.step()
