"""What both implementations of the natural gradient of layers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from unisono.optim.natural_gradient import FLOAT32_ALPHA

Gradients = tuple[Tensor, Tensor | None]
"""Of the weight, and of the bias where there is one."""


class Side(str, Enum):
    """The two matrices of rows that a layer has in a minibatch."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class FisherOptions:
    """How the Fisher matrices of all layers are estimated.

    Attributes:
        rank_in: Rank of the estimate for the inputs of a layer.
        rank_out: Rank of the estimate for its output derivatives.
        update_period: Minibatches from one Fisher update to the next.
        num_samples_history: Rows over which the estimates remember.
        alpha: Smoothing of the Fisher matrix.
    """

    rank_in: int
    rank_out: int
    update_period: int
    num_samples_history: float
    alpha: float

    def rank(self, side: Side, weight: Tensor) -> int:
        """Returns the rank for one side: at most half of the dimension, without the ones."""
        outputs, inputs = weight.flatten(1).shape
        if side is Side.INPUT:
            return min(self.rank_in, (inputs + 1) // 2)
        return min(self.rank_out, (outputs + 1) // 2)


class SideEstimate(Protocol):
    """The Fisher estimate of one side of a layer, as the optimizer keeps it in its state."""

    def state_dict(self) -> dict[str, Tensor | float]:
        """Returns t, frozen, basis, d and rho; see `OnlineNaturalGradient.state_dict`."""

    def load_state_dict(self, state: Mapping[str, Tensor | float]) -> None:
        """Continues from what `state_dict` returned, on whichever device that was."""


class LayerPreconditioner(Protocol):
    """Computes the natural gradients of layers from the rows of a minibatch."""

    def new_estimate(self, weight: Tensor, side: Side) -> SideEstimate:
        """Returns an estimate that starts from the next minibatch."""

    def gradients(
        self,
        weight: Tensor,
        inputs: list[Tensor],
        derivatives: list[Tensor],
        estimates: Mapping[Side, Any],
    ) -> Gradients:
        """Returns [dW, db] = s_g s_x ghat' xhat, as `NaturalGradientSGD` derives it.

        Args:
            weight: The weight.
            inputs: Views of the rows of x.
            derivatives: Views of the rows of g.
            estimates: Of both sides, made by `new_estimate`; they are updated from the rows.
        """

    def after_step(self) -> None:
        """Called by the optimizer at the end of each step."""


def row_count(weight: Tensor, derivatives: list[Tensor]) -> int:
    """Returns the number of rows that a minibatch has for a layer."""
    return sum(view.numel() for view in derivatives) // len(weight)


def row_dtype(weight: Tensor, derivatives: list[Tensor], options: FisherOptions) -> torch.dtype:
    """Returns what rows are multiplied in: bfloat16 where autocast made the derivatives so."""
    if weight.dtype is torch.float64 or options.alpha < FLOAT32_ALPHA:
        return torch.float64
    derived = {view.dtype for view in derivatives}
    narrow = weight.dtype is torch.float32 and derived == {torch.bfloat16}
    return torch.bfloat16 if narrow else torch.float32


def no_rows(weight: Tensor, bias: Tensor | None) -> Gradients:
    """Returns the gradients of a minibatch that has no row for a layer."""
    return torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
