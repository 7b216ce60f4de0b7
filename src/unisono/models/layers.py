"""Layers whose first parameters come from a generator of their own."""

from __future__ import annotations

import math

import torch
from torch import nn


def linear(
    inputs: int, outputs: int, variance: float, generator: torch.Generator, *, bias: bool = True
) -> nn.Linear:
    """Makes a linear layer without a draw from the global generator; its bias is 0."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
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
    layer.to_empty(device="cpu")
    _draw(layer, variance, generator)
    return layer


def _draw(layer: nn.Linear | nn.Conv1d, variance: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        layer.weight.normal_(0.0, math.sqrt(variance), generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
