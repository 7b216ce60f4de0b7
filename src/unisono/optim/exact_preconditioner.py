"""The natural gradient of layers, one `OnlineNaturalGradient` for each side of each layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unisono.optim.natural_gradient import OnlineNaturalGradient
from unisono.optim.preconditioner import (
    FisherOptions,
    Gradients,
    Side,
    no_rows,
    row_count,
    row_dtype,
)
from unisono.optim.rows import RowBuffer


class ExactPreconditioner:
    """Computes [dW, db] = s_g s_x ghat' xhat with Kaldi's arithmetic, layer by layer.

    This is what a CPU uses, and what `DevicePreconditioner` is tested against. Where autocast makes
    the derivatives bfloat16, rows are multiplied in bfloat16, as in autocast's own products, and
    the estimates stay float32.
    """

    def __init__(
        self, biases: Mapping[Tensor, Tensor | None], options: FisherOptions, *, mean: bool
    ) -> None:
        """Keeps memory for the rows of one layer at a time.

        Args:
            biases: The bias of each weight; without one there is no column of ones.
            options: Ranks, history and smoothing.
            mean: Whether the derivatives are those of a mean over the rows.
        """
        self._biases, self._options, self._mean = dict(biases), options, mean
        self._inputs, self._derivatives = RowBuffer(), RowBuffer()

    def new_estimate(self, weight: Tensor, side: Side) -> OnlineNaturalGradient:
        return OnlineNaturalGradient(
            self._options.rank(side, weight),
            update_period=self._options.update_period,
            num_samples_history=self._options.num_samples_history,
            alpha=self._options.alpha,
        )

    def gradients(
        self,
        weight: Tensor,
        inputs: list[Tensor],
        derivatives: list[Tensor],
        estimates: Mapping[Side, OnlineNaturalGradient],
    ) -> Gradients:
        bias = self._biases[weight]
        count = row_count(weight, derivatives)
        if count == 0:
            return no_rows(weight, bias)
        outputs, width = weight.flatten(1).shape
        dtype = row_dtype(weight, derivatives, self._options)
        factor = float(count) if self._mean else 1.0
        with torch.autocast(weight.device.type, enabled=False):
            # One side after the other: what was just written is still in the cache.
            g, into = self._derivatives.gather(derivatives, outputs, dtype)
            g, scale_g = estimates[Side.OUTPUT].precondition(g, out=into, factor=factor)
            x, into = self._inputs.gather(inputs, width, dtype, ones=bias is not None)
            x, scale_x = estimates[Side.INPUT].precondition(x, out=into)
            scale = scale_x * scale_g
            gradient = _scaled(scale, g.T, x[:, :width]).view(weight.shape).to(weight.dtype)
            if bias is None:
                return gradient, None
            # As a matrix of one row: several times faster in bfloat16 than a vector.
            shift = _scaled(scale, x[:, width:].T, g).view(bias.shape)
        return gradient, shift.to(bias.dtype)

    def after_step(self) -> None:
        """Nothing to do: estimates were updated in the backward pass."""


def _scaled(scale: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Returns scale a b; on the CPU, where reading the scale costs nothing, in one call.

    Elsewhere b is overwritten.
    """
    if a.is_cuda:
        return a @ b.mul_(scale.to(b.dtype))
    return torch.addmm(a.new_zeros(()), a, b, beta=0.0, alpha=float(scale))
