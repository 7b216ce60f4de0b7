"""Which examples of a minibatch a process of a learner computes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from unisono.errors import UserError

PROCESS = "UNISONO_PROCESS"
PROCESSES = "UNISONO_PROCESSES"


@dataclass(frozen=True)
class Slices:
    """Minibatches are split as evenly as possible, in the order of the ranks.

    One with fewer than two examples a process is computed by all of them as a whole: batch norm has
    nothing to normalise a single example by.
    """

    rank: int = 0
    size: int = 1
    split: bool = True
    """False: each process is given all examples, and computes a part of the model."""

    @classmethod
    def from_environment(cls, *, split: bool = True) -> Slices:
        """As the launcher has set it."""
        given = os.environ
        return cls(int(given.get(PROCESS, "0")), int(given.get(PROCESSES, "1")), split)

    def of(self, examples: Any) -> Any:
        """Those of this process.

        Raises:
            UserError: they are to be split and cannot be.
        """
        if not self.is_split:
            return examples
        try:
            count = len(examples)
            if self._is_whole(count):
                return examples
            return examples[self._start(count, self.rank) : self._start(count, self.rank + 1)]
        except TypeError:
            raise UserError(
                "the processes of a learner split the minibatches of the sampler, and this one "
                f"gives a {type(examples).__name__}, which has no slices: have it give lists"
            ) from None

    @property
    def is_split(self) -> bool:
        """Whether a minibatch is split over several processes."""
        return self.size > 1 and self.split

    def weight(self, count: int) -> float:
        """The share of a minibatch of so many examples that this process has."""
        if self._is_whole(count):
            return 1 / self.size
        return (self._start(count, self.rank + 1) - self._start(count, self.rank)) / count

    def _is_whole(self, count: int) -> bool:
        return not self.is_split or count < 2 * self.size

    def _start(self, count: int, rank: int) -> int:
        each, more = divmod(count, self.size)
        return rank * each + min(rank, more)


WHOLE = Slices()
