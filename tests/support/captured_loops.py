"""Loops that train with or without captured steps, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import unisono
from support.loops import BATCH, alone, dataset, flat, loss_of, network
from unisono.optim import NaturalGradientSGD, bound_steps


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)


def natural(model: nn.Module) -> torch.optim.Optimizer:
    return NaturalGradientSGD(model, 0.05, momentum=0.5, rank_in=3, rank_out=2)


def bounded(model: nn.Module) -> torch.optim.Optimizer:
    """With two groups; some steps of each are shortened, and some are not."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": weights}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True)
    bound_steps(optimizer, 0.4)
    return optimizer


OPTIMIZERS = {"sgd": sgd, "adamw": adamw, "bounded": bounded}


def train(
    strategy: Any,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    *,
    captured: bool,
    ends: dict[int, torch.Tensor],
    dropout: float = 0.0,
    spoil: Callable[[int], float] = lambda place: 1.0,
    device: str = "cpu",
) -> Callable[[], None]:
    """A user's loop, with a learning rate that changes, with or without capture."""

    def loop() -> None:
        model = network(dropout=dropout).to(device)
        optimizer = optimizer_of(model)
        torch.manual_seed(3)
        with unisono.Learner(model, optimizer, strategy) as learner:

            def loss(x: torch.Tensor, y: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
                return loss_of(model, (x, y)) * factor

            step = learner.capture(loss) if captured else None
            for place, (x, y) in enumerate(learner.draw(dataset(), epochs=3, batch_size=BATCH)):
                for group in optimizer.param_groups:
                    group["lr"] = 0.1 * 0.5**learner.progress
                factor = torch.tensor(spoil(place), device=device)
                x, y = x.to(device), y.to(device)
                if step is None:
                    learner.step(loss(x, y, factor))
                else:
                    step(x, y, factor)
            with learner.consensus():
                ends[learner.number] = flat(model).cpu()
            ends[learner.number + 100] = torch.tensor(learner.skipped)

    return loop


class Loop:
    """A solo loop that may do more than the usual one."""

    def __init__(self, captured: bool, batch: int = BATCH, device: str = "cpu") -> None:
        self.captured, self.batch, self.device = captured, batch, device
        self.model = network().to(device)
        self.optimizer = sgd(self.model)
        self.step: Callable[..., torch.Tensor] | None = None

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, (x, y))

    def before_update(self) -> None:
        nn.utils.clip_grads_with_norm_(
            self.model.parameters(), 0.1, nn.utils.get_total_norm(self.gradients)
        )

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def at(self, place: int) -> None:
        """Between two minibatches."""

    def run(self) -> torch.Tensor:
        def loop() -> None:
            with unisono.Learner(self.model, self.optimizer) as learner:
                step = learner.capture(self.loss, before_update=self.before_update)
                batches = learner.draw(dataset(), epochs=3, batch_size=self.batch)
                for place, (x, y) in enumerate(batches):
                    self.at(place)
                    x, y = x.to(self.device), y.to(self.device)
                    if self.captured:
                        step(x, y)
                    else:
                        learner.backward(self.loss(x, y))
                        self.before_update()
                        self.optimizer.step()
                        self.optimizer.zero_grad()

        assert alone(loop).counts.committed == 3 * -(-len(dataset()) // self.batch)
        return flat(self.model).cpu()


class Reads(Loop):
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().loss(x, y)
        return loss * (1.0 if loss.item() > 0 else 0.5)


def check_same(kind: type[Loop], tolerance: float = 1e-6, **options: Any) -> None:
    plain, captured = kind(captured=False, **options).run(), kind(captured=True, **options).run()
    assert torch.allclose(plain, captured, rtol=0, atol=tolerance)
