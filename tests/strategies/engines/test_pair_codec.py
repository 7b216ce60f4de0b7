"""References of two: the same bits at both, and changes that are exact negatives."""

from __future__ import annotations

import pytest
import torch

from unisono.fabric import Precision, SizeVector, TensorVector, learner
from unisono.strategies.engines.pair_codec import PairCodec

FEW = [Precision.INT8, Precision.INT4]
A, B, C = (learner(number) for number in range(3))
SIZE = 700


def exchange(
    mine: PairCodec, theirs: PairCodec, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A's and B's models; how far each moves, and the bytes on the way."""
    a, b = TensorVector(x.clone()), TensorVector(y.clone())
    asked = mine.encode(B, a)
    answered = theirs.encode(A, b)
    # What travels does not change with what is kept.
    asked, answered = asked.copy(), answered.copy()
    from_b, from_a = mine.decode(B, answered, a), theirs.decode(A, asked, b)
    deltas = [TensorVector(torch.empty(SIZE)), TensorVector(torch.empty(SIZE))]
    deltas[0].difference(from_b, a)
    deltas[1].difference(from_a, b)
    for delta in deltas:
        delta.scale(0.5)
    return deltas[0].tensor, deltas[1].tensor, asked.nbytes


@pytest.mark.parametrize("precision", list(Precision))
def test_moves_are_negatives_and_near_to_half_the_difference(precision: Precision) -> None:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, SIZE, generator=source)
    mine, theirs = PairCodec(precision), PairCodec(precision)
    for number in range(30):
        x += 0.01 * torch.randn(SIZE, generator=source)
        y += 0.01 * torch.randn(SIZE, generator=source)
        before = x.double() + y.double()
        moved, other, nbytes = exchange(mine, theirs, x, y)
        assert torch.equal(moved, -other)
        if number == 0 and precision.bits is not None:
            assert nbytes == 2 * SIZE
        else:
            assert nbytes == SizeVector(SIZE).encoded(precision).nbytes
        x += moved
        y += other
        torch.testing.assert_close(x.double() + y.double(), before, rtol=0, atol=1e-5)
        if number > 5:
            # A step of an error of what has changed, not of the models.
            step = {"float32": 0.0, "bfloat16": 2**-8 * 4, "int8": 1e-3, "int4": 0.02, "1bit": 3.0}
            assert (x - y).abs().max() <= step[precision.value] + 1e-5


@pytest.mark.parametrize("precision", FEW)
def test_what_is_rounded_off_is_not_lost(precision: Precision) -> None:
    """Two that take no steps come together to their mean as far as float32 goes."""
    source = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, SIZE, generator=source)
    mean = (x.double() + y.double()) / 2
    mine, theirs = PairCodec(precision), PairCodec(precision)
    for _ in range(12):
        moved, other, _ = exchange(mine, theirs, x, y)
        x, y = x + moved, y + other
    for model in (x, y):
        torch.testing.assert_close(model.double(), mean, rtol=0, atol=2e-6)


@pytest.mark.parametrize("precision", FEW)
def test_one_that_is_gone_begins_anew(precision: Precision) -> None:
    x = torch.randn(SIZE)
    mine, theirs = PairCodec(precision), PairCodec(precision)
    exchange(mine, theirs, x, x)
    few = SizeVector(SIZE).encoded(precision).nbytes
    assert mine.encode(B, TensorVector(x.clone())).nbytes == few
    assert mine.encode(C, TensorVector(x.clone())).nbytes == 2 * SIZE
    mine.forget(B)
    mine.forget(C)
    assert mine.encode(B, TensorVector(x.clone())).nbytes == 2 * SIZE


@pytest.mark.parametrize("precision", FEW)
def test_a_question_that_is_turned_away_changes_nothing(precision: Precision) -> None:
    """Its model was encoded, and nobody has mixed it in."""
    source = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, SIZE, generator=source)
    mine, theirs = PairCodec(precision), PairCodec(precision)
    exchange(mine, theirs, x, y)
    mine.encode(B, TensorVector(torch.randn(SIZE, generator=source)))
    moved, other, _ = exchange(mine, theirs, x, y)
    assert torch.equal(moved, -other)
