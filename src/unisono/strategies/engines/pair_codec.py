"""Models on their way between two learners, in few bits."""

from __future__ import annotations

from unisono.fabric import Address, Precision, Vector

FIRST = Precision.BFLOAT16
"""Of two that have no reference yet."""


class PairCodec:
    """What one learner remembers of each of its partners, to send only what has changed.

    Two learners i and j have a reference h in common, and send c_i = Q(x_i - h) and c_j = Q(x_j -
    h), with Q the rounding of the precision. Both compute with the models as they travelled,

        y_i = h + c_i        y_j = h + c_j        h <- (y_i + y_j) / 2

    in the same operations on the same numbers: y_i - y_j at one is exactly -(y_j - y_i) at the
    other, and h stays the same bits at both. What is rounded off is small against x_i - h, which is
    what has happened since the two met last, and stays in the learner's own model: so it is in the
    next difference, and there is no other residual (as in CHOCO-SGD, Koloskova et al. 2019,
    https://arxiv.org/abs/1902.00340).

    References are kept in step without a word: h changes with an exchange that both conclude, a
    learner is in one at a time with each other, and its messages come in order. Whoever begins
    anew has a new address, and no reference; the first exchange of two is in bfloat16. There is
    one vector of the model's size for each partner.

    In float32 and bfloat16 there is no reference: h = 0.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._keeps = precision.bits is not None
        self._references: dict[Address, Vector] = {}

    def encode(self, to: Address, model: Vector) -> Vector:
        """The model as it travels; ``model`` becomes what the other will read."""
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
        """The other's model; ``mine`` is one's own as it travelled to that one."""
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
