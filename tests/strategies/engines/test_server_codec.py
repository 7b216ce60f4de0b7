"""Pushes and pulls in few bits: nothing is lost, and copies follow their shards."""

from __future__ import annotations

import pytest
import torch

from unisono.fabric import Precision, SizeVector, TensorVector, learner
from unisono.strategies.engines.server_codec import PullCodec, PushCodec

FEW = [Precision.BFLOAT16, Precision.INT8, Precision.INT4]
HOLDER, OTHER, LEARNER = (learner(number) for number in range(3))
SIZE, RUN = 700, (1, 3)


@pytest.mark.parametrize("precision", FEW)
def test_pushes_and_what_is_left_are_the_sum_of_all_updates(precision: Precision) -> None:
    """In two pieces, of which one does not travel; some pushes are dropped by the shards."""
    source = torch.Generator().manual_seed(0)
    codec = PushCodec(precision)
    shards = torch.zeros(SIZE)
    total = torch.zeros(SIZE).double()
    for number in range(60):
        change = torch.randn(SIZE, generator=source)
        update = TensorVector(change.clone())
        codec.begin(update)
        if number % 7 == 3:
            continue  # Dropped: nothing of it is in the shards, and its work is done again.
        total += change.double()
        for span, travels in (((0, 300), True), ((300, SIZE), False)):
            piece = update.slice(*span)
            coded = codec.encode(piece) if travels else piece
            numbers = coded.decoded(precision, piece) if travels else piece
            shards[slice(*span)] += numbers.tensor
            codec.applied(piece, span, travelled=travels)
    assert isinstance(codec.unsent, TensorVector)
    left = codec.unsent.tensor.double()
    torch.testing.assert_close(shards.double() + left, total, rtol=0, atol=1e-4)
    assert not left[300:].any() and left[:300].abs().max() > 0


def test_in_float32_nothing_is_left_or_copied() -> None:
    codec, update = PushCodec(Precision.FLOAT32), TensorVector(torch.randn(5))
    codec.begin(update)
    assert codec.unsent is None
    assert codec.encode(update) is update
    codec.applied(update, (0, 5), travelled=True)
    assert codec.unsent is None
    assert PullCodec(Precision.FLOAT32).answer(LEARNER, RUN, 0, update) == (0, False, update)


class Pulls:
    """A holder with shards, and a learner with a copy of them."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.holder, self.learner = PullCodec(precision), PullCodec(precision)
        self.values = TensorVector(torch.randn(SIZE))
        self.copy = TensorVector.zeros(SIZE)

    def pull(self, *, arrives: bool = True) -> int:
        """The bytes of the answer."""
        base = self.learner.base(RUN, HOLDER)
        number, difference, vector = self.holder.answer(LEARNER, RUN, base, self.values)
        vector = vector.copy()
        if arrives:
            answer = (HOLDER, number)
            self.learner.take(self.copy, RUN, answer, vector, difference=difference)
        return vector.nbytes

    @property
    def distance(self) -> float:
        return float((self.copy.tensor - self.values.tensor).abs().max())


@pytest.mark.parametrize("precision", FEW)
def test_a_copy_follows_its_shards(precision: Precision) -> None:
    pulls = Pulls(precision)
    assert pulls.pull() == 4 * SIZE and pulls.distance == 0
    few = SizeVector(SIZE).encoded(precision).nbytes
    for _ in range(30):
        pulls.values.tensor += 0.01 * torch.randn(SIZE)
        assert pulls.pull() == few
        assert pulls.distance < 0.01
    for _ in range(8):
        pulls.pull()
    assert pulls.distance < 1e-6


@pytest.mark.parametrize("precision", FEW)
def test_an_answer_that_is_not_used_is_followed_by_a_whole_one(precision: Precision) -> None:
    pulls = Pulls(precision)
    pulls.pull()
    pulls.values.tensor += 1.0
    pulls.pull(arrives=False)
    assert pulls.pull() == 4 * SIZE and pulls.distance == 0


@pytest.mark.parametrize("precision", FEW)
def test_shards_that_have_moved_are_sent_whole(precision: Precision) -> None:
    pulls = Pulls(precision)
    pulls.pull()
    pulls.holder.forget()
    assert pulls.pull() == 4 * SIZE
    # Another holder, or runs that are cut in another way.
    assert pulls.learner.base(RUN, OTHER) == 0
    part = TensorVector.zeros(SIZE)
    pulls.learner.take(part, (2, 4), (OTHER, 9), TensorVector.zeros(SIZE), difference=False)
    assert pulls.learner.base(RUN, HOLDER) == 0
    assert pulls.learner.base((2, 4), OTHER) == 9
