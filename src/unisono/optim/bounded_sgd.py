"""SGD whose steps have a bounded length, so that a rate that is too high does not diverge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import SGD, Optimizer


def bound_steps(optimizer: SGD, longest: float) -> None:
    """Bounds how far SGD moves the parameters of a group in one step; 0: not at all.

    With momentum m the velocity is at most ||g|| / (1 - m) for gradients g of bounded length, so

        ||step|| <= rate * max ||g|| / (1 - m) <= longest    if    ||g|| <= longest (1 - m) / rate,

    and gradients are clipped to that. Where steps are shorter, nothing changes, to the last bit.
    Kaldi bounds the steps of natural gradient in the same way (``max_change_total``).
    """
    if longest == 0:
        return

    def clip(watched: Optimizer, args: Any, kwargs: Any) -> None:
        for group in watched.param_groups:
            rate, most = group["lr"], longest * (1.0 - group["momentum"])
            if isinstance(rate, Tensor):
                _clip(group["params"], most / rate)
            elif rate > 0:
                clip_grad_norm_(group["params"], most / rate)

    optimizer.register_step_pre_hook(clip)


def _clip(parameters: list[Tensor], limit: Tensor) -> None:
    """What ``clip_grad_norm_`` does, where the limit is on the device and is to stay there."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = get_total_norm(gradients)
    torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
