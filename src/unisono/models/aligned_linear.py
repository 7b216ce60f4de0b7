"""A linear layer whose products suit tensor cores, however many outputs it has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

ALIGNMENT = 8
"""Numbers of bfloat16 in 16 bytes, which kernels for tensor cores load at a time."""


class AlignedLinear(nn.Linear):
    """`nn.Linear`; on a GPU its outputs lie in rows whose length is a multiple of 16 bytes.

    With 10,217 outputs in bfloat16 they do not, and kernels are taken that load one number at a
    time: on an H200 the three products of such a layer took half of the step of a network of
    5 x 2048. So weight and bias get rows of zeros behind them, and the outputs of these are left
    out again. Parameters, their names and their gradients are those of `nn.Linear`. Where torch
    compiles the layer, that aligns the products by itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps ... x inputs to ... x outputs."""
        spare = -self.out_features % ALIGNMENT
        if spare == 0 or not on_tensor_cores(x):
            return super().forward(x)
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(x.device.type):  # first, since the narrow copy is smaller
            weight = weight.to(torch.get_autocast_dtype(x.device.type))
        weight = functional.pad(weight, (0, 0, 0, spare))
        if bias is not None:
            bias = functional.pad(bias, (0, spare))
        return functional.linear(x, weight, bias)[..., : self.out_features]


def on_tensor_cores(x: Tensor) -> bool:
    """Whether products are computed by kernels that want aligned rows."""
    return x.is_cuda and not torch.compiler.is_compiling()
