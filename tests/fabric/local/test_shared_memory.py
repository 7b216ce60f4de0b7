"""Slots of shared memory."""

from __future__ import annotations

import os

import pytest
import torch

from unisono.fabric.local.shared_memory import SlotPool, as_vector, map_memory
from unisono.fabric.vector import TensorVector

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 1000, 16385])
def test_another_mapping_sees_what_was_filled_in(dtype: torch.dtype, count: int) -> None:
    slots = SlotPool()
    tensor = torch.randint(0, 2, (count,)).to(dtype)
    slot = slots.take(count * dtype.itemsize)
    slot.fill(TensorVector(tensor))
    seen = as_vector(map_memory(slot.fd), count, dtype)
    slots.give(slot)
    slots.close()
    assert torch.equal(seen.tensor, tensor)


def test_a_slot_is_used_again_for_any_size_that_fits() -> None:
    slots = SlotPool()
    first = slots.take(100_000)
    slots.give(first)
    assert slots.take(131_072) is first
    assert slots.take(100_000) is not first
    assert slots.take(131_073).size == 2 * first.size


def test_a_discarded_slot_is_never_used_again_and_its_readers_are_not_disturbed() -> None:
    slots = SlotPool()
    slot = slots.take(1000)
    slot.fill(TensorVector(torch.full((10,), 1.0)))
    reader = as_vector(map_memory(slot.fd), 10, torch.float32)
    slots.discard(slot)
    other = slots.take(1000)
    other.fill(TensorVector(torch.full((10,), 2.0)))
    assert reader.tensor.eq(1.0).all()
    assert slots.discarded == {slot.number}


def test_what_is_given_back_after_closing_is_closed() -> None:
    slots = SlotPool()
    slot = slots.take(1)
    slots.close()
    slots.give(slot)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(slot.fd)
