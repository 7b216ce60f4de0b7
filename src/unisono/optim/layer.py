"""The natural gradient of one layer, from the rows of a minibatch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from unisono.optim.natural_gradient import OnlineNaturalGradient
from unisono.optim.rows import Workspace


class Side(str, Enum):
    """The two kinds of rows that a layer has."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class Estimation:
    """How the Fisher matrices of all layers are estimated.

    Attributes:
        rank_in: Directions held one by one of the inputs of a layer.
        rank_out: The same of its output derivatives.
        update_period: Minibatches from one update of the estimates to the next.
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

    def begin(self, rank: int) -> OnlineNaturalGradient:
        """Returns a preconditioner that has no estimate yet."""
        return OnlineNaturalGradient(
            rank,
            update_period=self.update_period,
            num_samples_history=self.num_samples_history,
            alpha=self.alpha,
        )


class NaturalProduct:
    """Makes [dW, db] = s_g s_x ghat' xhat, as `NaturalGradientSGD` derives it."""

    def __init__(self, *, mean: bool) -> None:
        """Keeps memory for one layer at a time.

        Args:
            mean: Whether the derivatives are those of a mean over the rows.
        """
        self._mean = mean
        self._inputs, self._derivatives = Workspace(), Workspace()

    def __call__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        inputs: list[Tensor],
        derivatives: list[Tensor],
        preconditioners: dict[Side, OnlineNaturalGradient],
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the gradients of the weight and of the bias.

        Args:
            weight: The weight.
            bias: The bias; without one there is no column of ones.
            inputs: Views of the rows of x.
            derivatives: Views of the rows of g.
            preconditioners: Of both sides; they learn from the rows.
        """
        outputs, width = weight.flatten(1).shape
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        count = sum(view.numel() for view in derivatives) // outputs
        if count == 0:  # a minibatch may have nothing for a layer
            return torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        summed = float(count) if self._mean else 1.0
        with torch.autocast(weight.device.type, enabled=False):
            # One side after the other: what was just written is still in the cache.
            g = self._derivatives.gather(derivatives, outputs, dtype, factor=summed)
            _, scale_g = preconditioners[Side.OUTPUT].precondition(g, out=g)
            x = self._inputs.gather(inputs, width, dtype, ones=bias is not None)
            _, scale_x = preconditioners[Side.INPUT].precondition(x, out=x)
            scale = scale_x * scale_g / summed
            gradient = _scaled(scale, g.T, x[:, :width]).view(weight.shape).to(weight.dtype)
            if bias is None:
                return gradient, None
            shift = scale.to(dtype) * (g.T @ x[:, width])
        return gradient, shift.to(bias.dtype)


def _scaled(scale: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Returns scale a b; on the host, where reading the scale waits for nobody, in one go.

    Elsewhere b is overwritten.
    """
    if a.is_cuda:
        return a @ b.mul_(scale.to(b.dtype))
    return torch.addmm(a.new_zeros(()), a, b, beta=0.0, alpha=float(scale))
