"""Layers whose first parameters come from a generator of their own."""

from __future__ import annotations

import math
import os

import torch
from torch import nn

from unisono.errors import UserError
from unisono.models.aligned_linear import AlignedLinear


def linear(
    inputs: int, outputs: int, variance: float, generator: torch.Generator, *, bias: bool = True
) -> nn.Linear:
    """Makes a linear layer without a draw from the global generator; its bias is 0."""
    layer = AlignedLinear(inputs, outputs, bias=bias, device="meta")
    _check_size(layer)
    layer.to_empty(device="cpu")
    _draw(layer, variance, generator)
    return layer


def convolution(
    inputs: int,
    outputs: int,
    frames: int,
    dilation: int,
    variance: float,
    generator: torch.Generator,
    *,
    bias: bool = True,
) -> nn.Conv1d:
    """Makes a 1-d convolution in the same way, over `frames` frames, `dilation` apart."""
    layer = nn.Conv1d(inputs, outputs, frames, dilation=dilation, bias=bias, device="meta")
    _check_size(layer)
    layer.to_empty(device="cpu")
    _draw(layer, variance, generator)
    return layer


def _check_size(layer: nn.Linear | nn.Conv1d) -> None:
    """A layer larger than the machine's memory is refused before anything is allocated."""
    needed = layer.weight.numel() * layer.weight.element_size()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        shape = " x ".join(str(size) for size in layer.weight.shape)
        raise UserError(
            f"a layer of {shape} parameters takes {needed / 2**30:,.0f} GiB, and this machine has "
            f"{memory / 2**30:,.0f} GiB: make network.hidden smaller"
        )


def _draw(layer: nn.Linear | nn.Conv1d, variance: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        layer.weight.normal_(0.0, math.sqrt(variance), generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
