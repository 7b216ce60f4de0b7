"""SGD whose steps have a bounded length, so that a rate that is too high does not diverge."""

from __future__ import annotations

from typing import Any

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
        for group in watched.param_groups:
            if group["lr"] > 0:
                limit = longest * (1.0 - group["momentum"]) / float(group["lr"])
                clip_grad_norm_(group["params"], limit)

    optimizer.register_step_pre_hook(clip)
