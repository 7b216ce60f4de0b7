"""What ``Learner.draw`` gives: minibatches, all of them or those of one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from unisono.errors import UserError
from unisono.learner.planner import Minibatch


class NoLengthError(UserError, TypeError):
    """``len()`` of minibatches that the learners share; a TypeError, as of any iterator."""


class Draw(Iterator[Any]):
    """The minibatches of one ``draw``, as they come."""

    def __init__(self, minibatches: Iterator[Any]) -> None:
        self._minibatches = minibatches

    def __next__(self) -> Any:
        return next(self._minibatches)

    def __len__(self) -> int:
        raise NoLengthError(
            "how many minibatches this learner gets depends on the others: drive schedules by "
            "learner.progress (0 to 1), for example with learner.scheduler(optimizer, function)"
        )


class Stream:
    """The minibatches of a run at one learner, handed on an epoch at a time.

    The epochs are those of ``place``, so all learners are in the same epoch at about the same time.
    A minibatch that comes back from a learner that died may be of an earlier epoch; it is trained
    in the epoch that the learner is in.
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
        """The first of the next epoch, once it has been seen."""
        self.left = False
        """Whether the loop over the minibatches was left before their end."""

    def take(self, epoch: int | None) -> Iterator[Any]:
        """The data of all that are left, or of those up to an epoch."""
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
