"""The iterators that ``Learner.draw`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from unisono.errors import UserError
from unisono.learner.arguments import whole_number
from unisono.learner.planner import Minibatch


class NoLengthError(UserError, TypeError):
    """``len()`` of a ``draw``, which is unknown; a TypeError, as for any iterator."""


class Draw(Iterator[Any]):
    """The minibatches of one ``draw``."""

    def __init__(self, minibatches: Iterator[Any]) -> None:
        self._minibatches = minibatches

    def __next__(self) -> Any:
        return next(self._minibatches)

    def __len__(self) -> int:
        raise NoLengthError(
            "how many minibatches this learner gets depends on the others: drive schedules by "
            "learner.progress (0 to 1), for example with learner.scheduler(optimizer, function)"
        )


class Draws:
    """Checks calls of ``draw``: once, or once in each of ``epochs``."""

    def __init__(self, epochs: int | None) -> None:
        self._epochs = None if epochs is None else whole_number("epochs", epochs, least=1)
        self._count = 0
        self._source: Any = None

    @property
    def is_single(self) -> bool:
        """Whether there is one ``draw`` for all epochs."""
        return self._epochs is None

    def next(self, source: Any, epochs: int | None) -> tuple[int, int | None]:
        """Checks another call; returns the number of epochs, and which one this is (None: all)."""
        if self._epochs is None:
            if self._count:
                raise UserError(
                    "draw() was called before: give it all epochs at once, or say how many calls "
                    "there will be, an epoch each, with unisono.Learner(..., epochs=E)"
                )
            self._count = 1
            return 1 if epochs is None else whole_number("epochs", epochs, least=1), None
        if epochs not in (None, 1):
            raise UserError("the Learner was given epochs: then each draw() is one of them")
        if self._count == self._epochs:
            raise UserError(f"the Learner was given epochs={self._epochs}: draw() was called more")
        if self._count and source is not self._source:
            raise UserError("draw() takes the same data in every epoch")
        self._source = source
        self._count += 1
        return self._epochs, self._count - 1


class Stream:
    """One learner's minibatches, an epoch at a time.

    The epochs are those of ``place``, so all learners are in the same epoch at about the same
    time. A minibatch that was returned by a learner that died may be of an earlier epoch; it is
    trained in the current one.
    """

    def __init__(
        self,
        minibatches: Iterator[tuple[Minibatch, Any]],
        epoch_of: Callable[[int], int],
        advance: Callable[[Minibatch], None],
    ) -> None:
        self._minibatches = minibatches
        self._epoch_of = epoch_of
        self._advance = advance
        self._next: tuple[Minibatch, Any] | None = None
        """The first minibatch of the next epoch, if it was drawn already."""
        self.left = False
        """Whether the user's loop was left early."""

    def take(self, epoch: int | None) -> Iterator[Any]:
        """The data of all remaining minibatches, or of those up to an epoch."""
        self.left = False
        try:
            while True:
                found, self._next = self._next or next(self._minibatches, None), None
                if found is None:
                    return
                minibatch, data = found
                if epoch is not None and self._epoch_of(minibatch.place) > epoch:
                    self._next = found
                    return
                self._advance(minibatch)
                yield data
        except GeneratorExit:
            self.left = True
            raise
