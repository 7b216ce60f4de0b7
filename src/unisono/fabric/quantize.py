"""Numbers in few bits: integers with a scale for each block.

A block is ``BLOCK`` numbers in a row; the last one may be shorter. With n = 127 (8 bits) or 7 (4
bits), m the largest magnitude in a block, and s = m / n in float32,

    code(x) = round(x / s), from -n to n        x ~ s code(x)

to the nearest, so that no number is off by more than s / 2. A block of zeros has s = 0. A block
with a number that is not finite has s = NaN, and all of it comes out as NaN.

In bytes: the scales of all blocks (float32), then the codes: a byte each, or two in a byte, those
of the first half of a block low and those of the second half high.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
_SCALE = 4
"""Bytes of a scale."""
_LEVELS = {8: 127, 4: 7}
_OFFSET = 8
"""Added to codes of 4 bits, so that none is negative."""


def quantized_bytes(count: int, bits: int) -> int:
    """Bytes of so many numbers."""
    return _SCALE * _blocks(count) + (count * bits + 7) // 8


def quantize(values: Tensor, bits: int) -> Tensor:
    """A flat tensor of floating-point numbers as bytes."""
    count = values.numel()
    out = torch.empty(quantized_bytes(count, bits), dtype=torch.uint8)
    scales = torch.empty(_blocks(count))
    at = _SCALE * len(scales)
    for place, blocks in _in_blocks(values):
        size = (blocks.numel() * bits + 7) // 8
        _quantize(blocks, bits, scales[place : place + len(blocks)], out[at : at + size])
        at += size
    out[: _SCALE * len(scales)] = scales.view(torch.uint8)
    return out


def dequantize(coded: Tensor, bits: int, count: int, dtype: torch.dtype) -> Tensor:
    """The inverse of ``quantize``: so many numbers of that type."""
    # A copy: bytes that came in a message need not lie where numbers can.
    scales = coded[: _SCALE * _blocks(count)].clone().view(torch.float32).to(dtype)
    out = torch.empty(count, dtype=dtype)
    at = _SCALE * len(scales)
    for place, blocks in _in_blocks(out):
        size = (blocks.numel() * bits + 7) // 8
        _dequantize(coded[at : at + size], bits, scales[place : place + len(blocks)], blocks)
        at += size
    return out


def _blocks(count: int) -> int:
    return (count + BLOCK - 1) // BLOCK


def _in_blocks(values: Tensor) -> list[tuple[int, Tensor]]:
    """Whole blocks as rows, and the rest as one more; each with its first block's number."""
    whole = values.numel() // BLOCK
    parts = [(0, values[: whole * BLOCK].view(whole, BLOCK)), (whole, values[whole * BLOCK :][None])]
    return [(place, part) for place, part in parts if part.numel()]


def _quantize(blocks: Tensor, bits: int, scales: Tensor, out: Tensor) -> None:
    levels = _LEVELS[bits]
    largest = torch.maximum(blocks.amax(dim=1), -blocks.amin(dim=1))
    scales.copy_(largest.div_(levels))
    broken = ~torch.isfinite(scales)
    if bool(broken.any()):
        scales[broken] = float("nan")
        blocks = blocks.masked_fill(broken[:, None], 0.0)
    divisors = torch.where(scales > 0, scales, 1.0).to(blocks.dtype)
    scaled = torch.div(blocks, divisors[:, None]).round_().clamp_(-levels, levels)
    if bits == 8:
        out.view(torch.int8).view(blocks.shape).copy_(scaled)
        return
    codes = scaled.to(torch.int8).add_(_OFFSET).view(torch.uint8)
    half = (blocks.shape[1] + 1) // 2
    low, high = codes[:, :half], codes[:, half:]
    rows = out.view(len(blocks), half)
    rows.copy_(low)
    rows[:, : high.shape[1]].bitwise_or_(high << 4)


def _dequantize(coded: Tensor, bits: int, scales: Tensor, out: Tensor) -> None:
    if bits == 8:
        out.copy_(coded.view(torch.int8).view(out.shape))
    else:
        half = (out.shape[1] + 1) // 2
        rows = coded.view(len(out), half)
        out[:, :half] = rows & 15
        out[:, half:] = rows[:, : out.shape[1] - half] >> 4
        out.sub_(_OFFSET)
    out.mul_(scales[:, None])
