"""Numbers in 8, 4 bits and 1: against a second implementation in numpy, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from unisono.fabric import Precision, SizeVector, TensorVector
from unisono.fabric.quantize import BLOCK, dequantize, quantize, quantized_bytes

LEVELS = {8: 127, 4: 7}
BITS = pytest.mark.parametrize("bits", [8, 4])
ALL_BITS = pytest.mark.parametrize("bits", [8, 4, 1])
SIZES = [0, 1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 7, 5 * BLOCK + 100]


def there_and_back(values: torch.Tensor, bits: int) -> torch.Tensor:
    return dequantize(quantize(values, bits), bits, values.numel(), values.dtype)


def in_numpy(values: np.ndarray, bits: int) -> np.ndarray:
    """Each block in turn, by the formula of the module."""
    out = np.zeros_like(values)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        if bits == 1:
            for group in (block < 0, block >= 0):
                mean = block[group].mean() if group.any() else 0.0
                out[start : start + BLOCK][group] = np.float32(mean)
            continue
        scale = (np.abs(block).max() / values.dtype.type(LEVELS[bits])).astype(np.float32)
        if scale > 0:
            codes = np.clip(np.rint(block / scale), -LEVELS[bits], LEVELS[bits])
            out[start : start + BLOCK] = codes.astype(values.dtype) * scale
    return out


@ALL_BITS
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_formula(bits: int, size: int, dtype: torch.dtype) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    coded = quantize(values, bits)
    assert coded.dtype is torch.uint8
    assert coded.numel() == quantized_bytes(size, bits)
    scales = (8 if bits == 1 else 4) * math.ceil(size / BLOCK)
    assert quantized_bytes(size, bits) == scales + math.ceil(size * bits / 8)
    found = dequantize(coded, bits, size, dtype)
    assert found.dtype is dtype
    # Sums of a block may be taken in another order.
    tolerance = 1e-6 if bits == 1 else 0.0
    np.testing.assert_allclose(found.numpy(), in_numpy(values.numpy(), bits), rtol=tolerance)


@BITS
@settings(deadline=None, max_examples=60)
@given(
    values=arrays.arrays(
        np.float32,
        st.integers(1, 3 * BLOCK),
        elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
    )
)
def test_no_number_is_off_by_more_than_half_a_step(bits: int, values: np.ndarray) -> None:
    found = there_and_back(torch.from_numpy(values), bits).numpy()
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        step = np.abs(block).max() / LEVELS[bits]
        # Scales below the least number of full precision are known less well.
        bound = step / 2 * (1 + 1e-5) + LEVELS[bits] * 2.0**-149
        assert np.abs(found[start : start + BLOCK] - block).max() <= bound


@BITS
def test_what_is_on_the_grid_stays(bits: int) -> None:
    levels = LEVELS[bits]
    grid = torch.arange(-levels, levels + 1, dtype=torch.float32) * 0.25
    assert torch.equal(there_and_back(grid, bits), grid)
    zeros = torch.zeros(BLOCK + 5)
    assert torch.equal(there_and_back(zeros, bits), zeros)


def test_in_one_bit_nothing_is_lost_of_the_mean_of_each_sign() -> None:
    values = torch.randn(3 * BLOCK + 40, dtype=torch.float64)
    found = there_and_back(values, 1)
    assert torch.equal(found >= 0, values >= 0)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        rest = block - found[start : start + BLOCK]
        for group in (block < 0, block >= 0):
            assert abs(float(rest[group].mean())) < 1e-7
        assert rest.norm() < block.norm()
    # Two values are all that it can say.
    two = torch.where(values > 0.3, 2.0, -0.5).float()
    assert torch.equal(there_and_back(two, 1), two)
    assert torch.equal(there_and_back(torch.zeros(300), 1), torch.zeros(300))


@ALL_BITS
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_block_that_is_not_finite_comes_out_as_such_and_harms_no_other(
    bits: int, bad: float
) -> None:
    values = torch.ones(3 * BLOCK + 3)
    values[BLOCK + 17] = bad
    values[-1] = bad
    found = there_and_back(values, bits)
    assert torch.equal(found[:BLOCK], values[:BLOCK])
    assert bool(found[BLOCK : 2 * BLOCK].isnan().all())
    assert torch.equal(found[2 * BLOCK : 3 * BLOCK], values[2 * BLOCK : 3 * BLOCK])
    assert bool(found[3 * BLOCK :].isnan().all())


@BITS
def test_numbers_too_small_for_a_scale_become_zero(bits: int) -> None:
    least = torch.full((5,), 2.0**-149)
    assert torch.equal(there_and_back(least, bits), torch.zeros(5))


@ALL_BITS
def test_bytes_may_lie_anywhere(bits: int) -> None:
    values = torch.randn(BLOCK + 9)
    coded = quantize(values, bits)
    for offset in range(1, 4):
        shifted = torch.cat([torch.zeros(offset, dtype=torch.uint8), coded])[offset:]
        found = dequantize(shifted, bits, values.numel(), torch.float32)
        assert torch.equal(found, there_and_back(values, bits))


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_encoded_to_the_bytes_of_numbers(precision: Precision, size: int) -> None:
    numbers, sizes = TensorVector.zeros(size), SizeVector(size)
    assert sizes.encoded(precision).nbytes == numbers.encoded(precision).nbytes
    back = sizes.encoded(precision).decoded(precision, sizes)
    assert len(back) == size == len(numbers.encoded(precision).decoded(precision, numbers))
