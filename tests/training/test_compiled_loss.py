"""A loss is compiled for one shape, and computed as ever where that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unisono.training.compiled_loss import CompiledLoss, Loss


class Compiler:
    """In place of `torch.compile`: counts calls of what it made."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, loss: Loss, *, dynamic: bool, options: dict[str, Any]) -> Loss:
        assert not dynamic
        assert options == {"compile_threads": 1}

        def compiled(x: Tensor, targets: Tensor) -> Tensor:
            self.calls += 1
            if self.error is not None:
                raise self.error
            return loss(x, targets)

        return compiled


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Compiler], Compiler]:
    def install(compiler: Compiler) -> Compiler:
        monkeypatch.setattr(torch, "compile", compiler)
        return compiler

    return install


def make() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 5))

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), targets)

    return model, loss


def minibatch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3), torch.randint(0, 5, (rows,))


def test_one_shape_is_compiled_and_nothing_else_changes(
    use: Callable[[Compiler], Compiler],
) -> None:
    compiler = use(Compiler())
    model, loss = make()
    compiled = CompiledLoss(loss, model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    compiled._compile(*minibatch(6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    torch.set_rng_state(random)
    x, y = minibatch(6)
    after = torch.get_rng_state()
    found = compiled(x, y)
    torch.set_rng_state(after)
    assert torch.equal(found, loss(x, y))
    assert compiler.calls == 3  # two trials, one loss
    compiled(*minibatch(4))
    assert compiler.calls == 3
    compiled(*minibatch(6))
    assert compiler.calls == 4


def test_without_a_compiler_it_is_computed_as_ever(
    use: Callable[[Compiler], Compiler], capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = use(Compiler(RuntimeError("Failed to find C compiler.\nPlease specify it")))
    model, loss = make()
    compiled = CompiledLoss(loss, model)
    for rows in (6, 6, 4):
        assert compiled(*minibatch(rows)).requires_grad
    assert compiler.calls == 1
    told = capsys.readouterr()
    assert "not compiled, and steps take longer: Failed to find C compiler." in told.out + told.err
    assert "Please" not in told.out + told.err
