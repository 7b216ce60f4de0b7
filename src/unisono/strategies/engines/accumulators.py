"""What a learner collects between two pushes to a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unisono.fabric import Vector
from unisono.strategies.base import Replica, Updater, check_finite
from unisono.strategies.engines.shards import Adder


class Accumulator(Protocol):
    """One learner's work since its last push."""

    steps_locally: bool
    """Whether the learner's own optimizer steps."""

    def add(self, examples: int) -> None:
        """Called before the step on a minibatch of so many examples."""

    def take(self, model: Vector, share: float, rounds: int) -> Vector:
        """The vector to push; ``model`` is what was pulled last."""

    def rates(self, share: float) -> Sequence[float]:
        """The rates for the shards' updaters; ``share`` is this learner's in the model."""

    def updater(self, values: Vector, start: int) -> Updater:
        """Applies pushes to a shard, whose ``values`` are the parameters from ``start`` on."""

    def pull(self, model: Vector) -> None:
        """Continues from the pulled ``model``, which contains all that was pushed."""


class GradientAccumulator:
    """The mean gradient, weighted by the examples of each minibatch."""

    steps_locally = False

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._total: Vector | None = None
        self._first = self._examples = 0

    def add(self, examples: int) -> None:
        if self._total is None:
            self._total, self._first = self._replica.gradient(), max(examples, 1)
            self._examples = self._first
        else:
            self._replica.add_gradient(self._total, examples / self._first)
            self._examples += examples

    def take(self, model: Vector, share: float, rounds: int) -> Vector:
        """The mean gradient: one step, whatever the share."""
        assert self._total is not None
        total, self._total = self._total, None
        if self._examples != self._first:
            total.scale(self._first / self._examples)
        return total

    def rates(self, share: float) -> Sequence[float]:
        return self._replica.learning_rates()

    def updater(self, values: Vector, start: int) -> Updater:
        return self._replica.updater(values, start)

    def pull(self, model: Vector) -> None:
        self._replica.replace(model)


class ChangeAccumulator:
    """The change of the parameters by local steps.

    With m the model that was pulled last and x the parameters, a push is c (x - m), c the share of
    this learner. Local steps go on while it is under way; when the shards have answered with m',

        x <- x + (m' - x_pushed)

    so that x is m' and the steps that are not pushed yet.
    """

    steps_locally = True

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._pushed: Vector | None = None
        self._steps = 0

    def add(self, examples: int) -> None:
        self._steps += 1

    def take(self, model: Vector, share: float, rounds: int) -> Vector:
        """The change since the last pull, times the share."""
        self._pushed = self._replica.parameters()
        self._steps = 0
        change = self._pushed.like()
        change.difference(self._pushed, model)
        check_finite(self._replica, change, rounds)
        if share != 1:
            change.scale(share)
        return change

    def rates(self, share: float) -> Sequence[float]:
        return ()

    def updater(self, values: Vector, start: int) -> Updater:
        return Adder(values)

    def pull(self, model: Vector) -> None:
        """Replaces the parameters, and keeps steps that are not pushed yet."""
        pushed, self._pushed = self._pushed, None
        if self._steps == 0 or pushed is None:
            self._replica.replace(model)
        else:
            moved = self._replica.parameters()
            pushed.difference(model, pushed)
            moved.add(pushed)
            self._replica.replace(moved)
            self._replica.recycle(moved)
        if pushed is not None:
            self._replica.recycle(pushed)
