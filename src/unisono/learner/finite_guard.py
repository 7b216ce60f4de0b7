"""A step that is not finite is not taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from unisono.errors import UserError

IN_A_ROW = 10
"""Steps that may be not finite one after the other before the learner leaves."""


class FiniteGuard:
    """Looks at the gradients before a step.

    The sum of a gradient is a number that is not finite if any of its values is. On a GPU this is
    one device-to-host read a step, as in GradScaler; where a GradScaler of the user's watches
    already it has found what there is to find, and calls no ``step``.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._in_a_row = 0

    def mark(self, loss: torch.Tensor, parameters: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Makes the gradients of a loss that is not finite not finite, too, whatever they are.

        So what is decided from gradients that learners share is decided alike by all.
        """
        if not loss.is_cuda and math.isfinite(loss.item()):
            return
        for parameter in parameters():
            grad = parameter.grad
            if grad is not None and grad.numel() > 0:
                # 0 for a finite loss, which need not be read from the device to know it.
                zero = loss.detach().reshape(()) * 0
                grad[(0,) * grad.dim()].add_(zero.to(grad.device))
                return

    def allows(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether the step is finite."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if any(grad.layout is not torch.strided for grad in grads):
            raise UserError("sparse gradients are not supported: use sparse=False in the embedding")
        finite = _are_finite(grads)
        if finite:
            self._in_a_row = 0
        else:
            self.count()
        return finite

    def count(self) -> None:
        """A step was not taken."""
        self.skipped += 1
        self._in_a_row += 1

    @property
    def has_diverged(self) -> bool:
        """Whether too many steps in a row were not finite."""
        return self._in_a_row >= IN_A_ROW


def _are_finite(grads: list[torch.Tensor]) -> bool:
    if any(grad.is_cuda for grad in grads):
        largest = torch._foreach_norm(grads, math.inf)
        return bool(torch.stack([value.float() for value in largest]).isfinite().all())
    # One by one: the next read, the optimizer's, finds in the cache what this one has read.
    return all(math.isfinite(_sum(grad)) for grad in grads)


def _sum(grad: torch.Tensor) -> float:
    wide = torch.float32 if grad.dtype is torch.float16 else None
    return grad.sum(dtype=wide).item()
