"""How far a learner and its run are in the data."""

from __future__ import annotations

from unisono.learner.arguments import whole_number
from unisono.learner.planner import Minibatch
from unisono.learner.positions import DataOrder


class Progress:
    """The current minibatch, how far the run is, and which multiples of examples were passed."""

    def __init__(self, positions: DataOrder, reached: int = 0) -> None:
        self.current: Minibatch | None = None
        self._positions = positions
        self._reached = reached
        self._passed: dict[int, bool] = {}

    def advance(self, minibatch: Minibatch) -> None:
        self.current = minibatch
        self._reached = max(self._reached, minibatch.reached)
        for examples in self._passed:
            self._passed[examples] |= self._passes(examples)

    def finish(self) -> None:
        self._reached = self._positions.total

    @property
    def progress(self) -> float:
        """The share of all minibatches that were handed out so far."""
        return self._reached / self._positions.total

    @property
    def members(self) -> int:
        """How many learners the run had when the current minibatch was handed out."""
        return 1 if self.current is None else self.current.members

    @property
    def examples(self) -> int:
        return self._positions.examples_before(self._reached)

    @property
    def epoch(self) -> int:
        """The epoch that the run was in when the current minibatch was handed out."""
        if self.current is not None:
            return self._positions.epoch(self.current.place)
        return self._positions.epoch(max(self._reached - 1, 0))

    def every(self, examples: int) -> bool:
        """Whether, since the last call, this learner trained past a multiple of ``examples``."""
        whole_number("examples", examples, least=1)
        passed = self._passed.get(examples)
        if passed is None:
            passed = self._passes(examples)
        self._passed[examples] = False
        return passed

    def _passes(self, examples: int) -> bool:
        current = self.current
        if current is None or current.stand_in:
            return False
        start = self._positions.examples_before(current.place)
        return (start + self._positions.count(current.place)) // examples > start // examples
