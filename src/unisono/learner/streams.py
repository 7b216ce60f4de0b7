"""Minibatches of iterable data, which can only be read from the beginning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from unisono.errors import UserError
from unisono.learner.positions import Positions
from unisono.learner.sampled_positions import set_epoch

_log = logging.getLogger(__name__)


class StreamPositions(Positions):
    """The minibatches of a stream: ``minibatches`` of them an epoch, in its own order."""

    def __init__(self, minibatches: int, batch_size: int, epochs: int, seed: int) -> None:
        super().__init__(minibatches * batch_size, batch_size, epochs, seed, shuffle=False)

    def describe(self) -> str:
        return f"a stream of {self.per_epoch} minibatches of {self.batch_size}"

    def indices(self, position: int) -> Any:
        return divmod(position, self.per_epoch)


class Grouped:
    """Examples of a stream as minibatches; the last one of an epoch may be short."""

    def __init__(
        self, examples: Iterable[Any], size: int, collate: Callable[[list[Any]], Any]
    ) -> None:
        self.dataset = examples
        self._size = size
        self._collate = collate

    def __iter__(self) -> Iterator[Any]:
        return self._group(iter(self.dataset))

    def skip(self, minibatches: int) -> Iterator[Any]:
        """Skips minibatches, with the stream's own ``skip`` if it has one."""
        examples = minibatches * self._size
        skip = getattr(self.dataset, "skip", None)
        if callable(skip):
            return self._group(iter(skip(examples)))
        return self._group(islice(self.dataset, examples, None))

    def _group(self, examples: Iterator[Any]) -> Iterator[Any]:
        while group := list(islice(examples, self._size)):
            yield self._collate(group)


class StreamedBatches:
    """Random access to a stream of minibatches.

    Each ``iter()`` of the stream is an epoch. Places are mostly asked for in rising order; what
    lies between is read and thrown away. For a place before, as one of a learner that has died, the
    epoch is begun again. A stream that ends before its last place begins again, too, so that nobody
    waits for what is not there.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._iterator: Iterator[Any] | None = None
        self._epoch = -1
        self._next = 0
        """The place that comes next."""
        self._begun = 0
        """The place at which this pass over the stream began."""
        self._told = False

    def batch(self, indices: tuple[int, int]) -> Any:
        """The minibatch at a place of an epoch."""
        epoch, place = indices
        if self._iterator is None or epoch != self._epoch or place < self._next:
            self._begin(epoch, place)
        while True:
            assert self._iterator is not None
            for minibatch in self._iterator:
                self._next += 1
                if self._next > place:
                    return minibatch
            self._begin_again()

    def close(self) -> None:
        """Ends the workers that a DataLoader may have."""
        self._iterator = None

    def _begin(self, epoch: int, place: int) -> None:
        set_epoch(self._stream, epoch)
        skip = getattr(self._stream, "skip", None)
        self._epoch, self._begun, self._next = epoch, 0, 0
        if place and callable(skip):
            self._iterator, self._next = iter(skip(place)), place
        else:
            self._iterator = iter(self._stream)

    def _begin_again(self) -> None:
        if self._next == self._begun:
            raise UserError("there are no examples to train on: the data ended at its beginning")
        if not self._told:
            self._told = True
            _log.warning(
                "unisono: epoch %d of the data ended before minibatch %d: it begins again; give "
                "draw() the number that there are, minibatches=N",
                self._epoch,
                self._next,
            )
        self._iterator, self._begun = iter(self._stream), self._next
