"""Numbers in few bits: integers with a scale for each block, or signs with two.

A block is ``BLOCK`` numbers in a row; the last one may be shorter. With n = 127 (8 bits) or 7 (4
bits), m the largest magnitude in a block, and s = m / n in float32,

    code(x) = round(x / s), from -n to n        x ~ s code(x)

to the nearest, so that no number is off by more than s / 2. In 1 bit there is the sign of x, and x
comes out as the mean of all numbers of its block that have this sign (Seide et al. 2014,
https://www.isca-archive.org/interspeech_2014/seide14_interspeech.html). A block of zeros stays so.
A block with a number that is not finite comes out as NaN, all of it.

In bytes: the scales of all blocks (float32; in 1 bit the mean of those below zero, and that of the
others), then the codes, 8 / bits in a byte: a block is cut into so many pieces, and those of the
first piece are the lowest bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
_LEVELS = {8: 127, 4: 7}
_SCALES = {8: 1, 4: 1, 1: 2}
"""Of a block; 4 bytes each."""


def quantized_bytes(count: int, bits: int) -> int:
    """Bytes of so many numbers."""
    return 4 * _SCALES[bits] * _blocks(count) + _bytes_of_codes(count, bits)


def quantize(values: Tensor, bits: int) -> Tensor:
    """A flat tensor of floating-point numbers as bytes."""
    count = values.numel()
    out = torch.empty(quantized_bytes(count, bits), dtype=torch.uint8)
    scales = torch.empty(_blocks(count), _SCALES[bits])
    at = 4 * scales.numel()
    out_scales = out[:at]
    for place, blocks in _in_blocks(values):
        size = _bytes_of_codes(blocks.numel(), bits)
        find = _signs if bits == 1 else _integers
        codes = find(blocks, bits, scales[place : place + len(blocks)])
        _pack(codes, bits, out[at : at + size].view(len(blocks), -1))
        at += size
    out_scales.copy_(scales.view(torch.uint8).flatten())
    return out


def dequantize(coded: Tensor, bits: int, count: int, dtype: torch.dtype) -> Tensor:
    """The inverse of ``quantize``: so many numbers of that type."""
    at = 4 * _SCALES[bits] * _blocks(count)
    # A copy: bytes that came in a message need not lie where numbers can.
    scales = coded[:at].clone().view(torch.float32).view(-1, _SCALES[bits]).to(dtype)
    out = torch.empty(count, dtype=dtype)
    for place, blocks in _in_blocks(out):
        size = _bytes_of_codes(blocks.numel(), bits)
        own = scales[place : place + len(blocks)]
        _unpack(coded[at : at + size].view(len(blocks), -1), bits, blocks)
        if bits == 1:
            blocks.copy_(torch.where(blocks > 0, own[:, 1:], own[:, :1]))
        else:
            blocks.mul_(own)
        at += size
    return out


def _blocks(count: int) -> int:
    return (count + BLOCK - 1) // BLOCK


def _bytes_of_codes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def _in_blocks(values: Tensor) -> list[tuple[int, Tensor]]:
    """Whole blocks as rows, and the rest as one more; each with its first block's number."""
    whole = values.numel() // BLOCK
    parts = [
        (0, values[: whole * BLOCK].view(whole, BLOCK)),
        (whole, values[whole * BLOCK :][None]),
    ]
    return [(place, part) for place, part in parts if part.numel()]


def _integers(blocks: Tensor, bits: int, scales: Tensor) -> Tensor:
    """The codes of blocks, a byte each; writes their scales."""
    levels = _LEVELS[bits]
    largest = torch.maximum(blocks.amax(dim=1, keepdim=True), -blocks.amin(dim=1, keepdim=True))
    scales.copy_(largest.div_(levels))
    blocks = _without_broken(blocks, scales)
    divisors = torch.where(scales > 0, scales, 1.0).to(blocks.dtype)
    return torch.div(blocks, divisors).round_().clamp_(-levels, levels).to(torch.int8)


def _signs(blocks: Tensor, bits: int, scales: Tensor) -> Tensor:
    """The same of signs: 1 where a number is not below zero."""
    above = blocks >= 0
    count = above.sum(dim=1)
    scales[:, 0] = blocks.clamp(max=0).sum(dim=1) / (blocks.shape[1] - count).clamp(min=1)
    scales[:, 1] = blocks.clamp(min=0).sum(dim=1) / count.clamp(min=1)
    _without_broken(blocks, scales)
    return above.to(torch.int8)


def _without_broken(blocks: Tensor, scales: Tensor) -> Tensor:
    """Blocks with a number that is not finite get NaN for a scale, and zeros."""
    broken = ~torch.isfinite(scales).all(dim=1, keepdim=True)
    if bool(broken.any()):
        scales.masked_fill_(broken, float("nan"))
        blocks = blocks.masked_fill(broken, 0.0)
    return blocks


def _pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Puts codes together; those of 4 bits are made positive first."""
    if bits == 8:
        out.view(torch.int8).copy_(codes)
        return
    if bits == 4:
        codes = codes.add_(_LEVELS[4])
    codes = codes.view(torch.uint8)
    width = out.shape[1]
    out.copy_(codes[:, :width])
    for place in range(1, 8 // bits):
        piece = codes[:, place * width : (place + 1) * width]
        out[:, : piece.shape[1]].bitwise_or_(piece << (place * bits))


def _unpack(packed: Tensor, bits: int, out: Tensor) -> None:
    """The codes as numbers."""
    if bits == 8:
        out.copy_(packed.view(torch.int8))
        return
    width = packed.shape[1]
    for place in range(8 // bits):
        piece = out[:, place * width : (place + 1) * width]
        piece.copy_((packed[:, : piece.shape[1]] >> (place * bits)) & (2**bits - 1))
    if bits == 4:
        out.sub_(_LEVELS[4])
