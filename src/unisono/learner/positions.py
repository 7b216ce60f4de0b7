"""Which examples each position of the pool holds."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.pool.order import Order

_BLOCK = 64
"""The order is computed for so many minibatches at a time."""


class DataOrder(Protocol):
    """What is at each position of a run."""

    @property
    def batch_size(self) -> int:
        """Examples of a minibatch, or their mean."""

    @property
    def per_epoch(self) -> int:
        """Minibatches an epoch, or their mean."""

    @property
    def total(self) -> int:
        """Minibatches of all epochs."""

    def describe(self) -> str:
        """Describes all that determines the examples of each position."""

    def epoch(self, position: int) -> int:
        """The epoch of a position."""

    def count(self, position: int) -> int:
        """How many examples a position holds."""

    def examples_before(self, position: int) -> int:
        """Examples of all positions before this one."""

    def indices(self, position: int) -> Any:
        """The argument for which the data returns the minibatch of a position."""


class Positions:
    """The positions of a run on a dataset, as examples.

    Position p is minibatch ``p mod M`` of epoch ``p div M``, with M minibatches an epoch. The
    examples of an epoch are in a keyed order of the whole corpus, or, without ``shuffle``, in that
    of the corpus itself; its last minibatch may be short, or, with ``drop_last``, is left out.
    """

    def __init__(
        self,
        examples: int,
        batch_size: int,
        epochs: int,
        seed: int,
        *,
        drop_last: bool = False,
        shuffle: bool = True,
    ) -> None:
        if examples == 0:
            raise UserError("there are no examples to train on")
        if epochs < 1 or batch_size < 1:
            raise UserError(f"epochs ({epochs}) and batch size ({batch_size}) must be at least 1")
        self.batch_size = batch_size
        self.per_epoch = examples // batch_size if drop_last else -(-examples // batch_size)
        """Minibatches an epoch."""
        if self.per_epoch == 0:
            raise UserError(
                f"{examples} examples are less than one minibatch of {batch_size}, and drop_last "
                "leaves it out: use a smaller batch size"
            )
        self.total = epochs * self.per_epoch
        self._corpus = examples
        self._examples = min(examples, self.per_epoch * batch_size)
        self._order = Order(examples, seed)
        self._shuffle = shuffle
        self._block: tuple[int, int, NDArray[np.int64]] = (-1, 0, np.empty(0, np.int64))

    def describe(self) -> str:
        return f"{self._corpus} examples in {self.per_epoch} minibatches of {self.batch_size}, " + (
            f"seed {self._order.seed}" if self._shuffle else "not shuffled"
        )

    def epoch(self, position: int) -> int:
        return position // self.per_epoch

    def count(self, position: int) -> int:
        place = position % self.per_epoch
        return min(self.batch_size, self._examples - place * self.batch_size)

    def examples_before(self, position: int) -> int:
        epoch, place = divmod(position, self.per_epoch)
        return epoch * self._examples + place * self.batch_size

    def indices(self, position: int) -> NDArray[np.int64]:
        epoch, place = divmod(position, self.per_epoch)
        start = place * self.batch_size
        stop = start + self.count(position)
        known_epoch, first, examples = self._block
        if epoch != known_epoch or not first <= start < stop <= first + len(examples):
            first = start
            end = min(start + _BLOCK * self.batch_size, self._examples)
            examples = (
                self._order.indices(epoch, first, end)
                if self._shuffle
                else np.arange(first, end, dtype=np.int64)
            )
            self._block = (epoch, first, examples)
        return examples[start - first : stop - first]
