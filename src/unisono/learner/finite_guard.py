"""Skips steps that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from unisono.errors import Diverged, UserError
from unisono.learner.skip_counts import SkipCounts

IN_A_ROW = 10
"""So many steps in a row that are not finite mean that the learner has diverged."""


class FiniteGuard:
    """Checks the gradients before a step.

    On a CPU it sums each gradient: the sum is not finite if any value is not. On a GPU this is one
    device-to-host read per step, as in GradScaler. If the user's own GradScaler finds such a
    gradient first, it does not call ``step``.
    """

    def __init__(self) -> None:
        self._skipped = self._in_a_row = 0
        self.captured: SkipCounts | None = None
        """Of captured steps, which check themselves."""

    @property
    def skipped(self) -> int:
        """Steps that were not taken; waits for the device."""
        if self.captured is None:
            return self._skipped
        self.captured.flush()
        return self._skipped + self.captured.skipped

    def mark(self, loss: torch.Tensor, parameters: Callable[[], Iterable[torch.Tensor]]) -> None:
        """If the loss is not finite, makes the gradients not finite, too.

        So learners that share gradients all decide alike.
        """
        if loss.is_cuda or not math.isfinite(loss.item()):
            make_not_finite_like(loss, parameters())

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
        """Counts a step that was not taken."""
        self._skipped += 1
        self._in_a_row += 1

    def check(self, learner: int) -> None:
        """Raises ``Diverged`` if too many steps in a row were not finite."""
        captured = 0 if self.captured is None else self.captured.in_a_row
        if max(self._in_a_row, captured) >= IN_A_ROW:
            raise Diverged(
                f"learner {learner}: {self.skipped} steps were not finite, the last ten in a row"
            )


def make_not_finite_like(loss: torch.Tensor, parameters: Iterable[torch.Tensor]) -> None:
    """Makes the gradients not finite if the loss is not, without reading it from the device."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.numel() > 0:
            zero = loss.detach().reshape(()) * 0  # or NaN
            grad[(0,) * grad.dim()].add_(zero.to(grad.device))
            return


def _are_finite(grads: list[torch.Tensor]) -> bool:
    if any(grad.is_cuda for grad in grads):
        largest = torch._foreach_norm(grads, math.inf)
        return bool(torch.stack([value.float() for value in largest]).isfinite().all())
    # One by one, so that the optimizer finds the gradient in the cache.
    return all(math.isfinite(_sum(grad)) for grad in grads)


def _sum(grad: torch.Tensor) -> float:
    wide = torch.float32 if grad.dtype is torch.float16 else None
    return grad.sum(dtype=wide).item()
