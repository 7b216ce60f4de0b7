"""Quantised models in exchanges of two learners."""

from __future__ import annotations

from unisono.fabric import Address, Precision, Vector

FIRST = Precision.BFLOAT16
"""The precision of a first exchange, without a reference."""


class PairCodec:
    """Sends each partner only what has changed since the last exchange with it.

    Two learners i and j share a reference h, and send c_i = Q(x_i - h) and c_j = Q(x_j -
    h), with Q the rounding of the precision. Both compute with the models as they were sent,

        y_i = h + c_i        y_j = h + c_j        h <- (y_i + y_j) / 2

    in the same operations on the same numbers: y_i - y_j at one is exactly -(y_j - y_i) at the
    other, and h stays the same bits at both. The rounding error is small against x_i - h, the
    change since their last exchange, and stays in the learner's own model: it is in the next
    difference, and needs no other residual (as in CHOCO-SGD, Koloskova et al. 2019,
    https://arxiv.org/abs/1902.00340).

    References stay in step without messages: h changes with an exchange that both conclude, two
    learners do one at a time, and messages come in order. A new incarnation has a new address, and
    no reference; a first exchange is in bfloat16. Memory: one vector of the model's size for each
    partner.

    In float32 and bfloat16 there is no reference: h = 0.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._keeps = precision.bits is not None
        self._references: dict[Address, Vector] = {}

    def encode(self, to: Address, model: Vector) -> Vector:
        """The encoded model; ``model`` becomes what the receiver will decode."""
        reference = self._references.get(to)
        precision = self._precision_with(to)
        if reference is None:
            coded = model.encoded(precision)
            if coded is not model:
                model.assign(coded)
            return coded
        model.add(reference, -1.0)
        coded = model.encoded(precision)
        model.assign(coded.decoded(precision, model))
        model.add(reference)
        return coded

    def decode(self, sender: Address, coded: Vector, mine: Vector) -> Vector:
        """The sender's model; ``mine`` is the model as it was sent to it."""
        reference = self._references.get(sender)
        theirs = coded.decoded(self._precision_with(sender), mine)
        if reference is not None:
            theirs.add(reference)
        if self._keeps:
            mean = mine.copy()
            mean.add(theirs)
            mean.scale(0.5)
            self._references[sender] = mean
        return theirs

    def forget(self, who: Address) -> None:
        self._references.pop(who, None)

    def _precision_with(self, other: Address) -> Precision:
        return FIRST if self._keeps and other not in self._references else self._precision
