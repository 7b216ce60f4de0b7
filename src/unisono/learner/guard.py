"""A step that is not finite is not taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch

IN_A_ROW = 10
"""Steps that may be not finite one after the other before the learner leaves."""


class Guard:
    """Looks at loss and gradients before a step.

    The sum of each gradient is a number that is not finite if any of its values is. On a GPU this
    is one device-to-host read a step, as in GradScaler; where a GradScaler of the user's watches
    already it has found what there is to find, and calls no ``step``.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._in_a_row = 0
        self._loss: torch.Tensor | None = None

    def see(self, loss: torch.Tensor) -> None:
        """Notes a loss of the coming step."""
        loss = loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss

    def allows(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether the step is finite."""
        with torch.no_grad():
            sums = [p.grad.sum() for p in parameters if p.grad is not None]
            if self._loss is not None:
                sums.append(self._loss.to(sums[0].device) if sums else self._loss)
            finite = not sums or bool(torch.isfinite(torch.stack([s.float() for s in sums])).all())
        self._loss = None
        if finite:
            self._in_a_row = 0
        else:
            self.count()
        return finite

    def count(self) -> None:
        """A step was not taken."""
        self._loss = None
        self.skipped += 1
        self._in_a_row += 1

    @property
    def hopeless(self) -> bool:
        """Whether too many steps in a row were not finite."""
        return self._in_a_row >= IN_A_ROW
