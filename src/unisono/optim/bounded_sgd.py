"""SGD whose steps have a bounded length, so that a rate that is too high does not diverge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
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
        # In a step that is captured as a CUDA graph, rates and norms are on the device.
        norms = getattr(watched, "gradient_norms", [None] * len(watched.param_groups))
        for group, norm in zip(watched.param_groups, norms, strict=True):
            rate, most = group["lr"], longest * (1.0 - group["momentum"])
            if norm is not None:
                _clip(group["params"], norm, most / rate)
            elif rate > 0:
                clip_grad_norm_(group["params"], most / rate)

    optimizer.register_step_pre_hook(clip)


def _clip(parameters: list[Tensor], norm: Tensor, limit: Tensor) -> None:
    """What ``clip_grad_norm_`` does with a norm that is known, without waiting for the device.

    Most steps need no clipping, and a product with 1 would read and write all gradients. So it is
    a step of SGD along the gradients themselves, g -= (1 - c) g, of which ``found_inf`` says where
    there is nothing to do.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    torch._fused_sgd_(
        gradients,
        gradients,
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=1.0 - factor,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=(factor == 1.0).float(),
    )
