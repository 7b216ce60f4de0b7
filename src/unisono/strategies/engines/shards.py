"""The parameters of a server, cut into shards: where they are, and what is applied to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from unisono.fabric import Address, Addresses, Vector
from unisono.pool.ranges import Ranges
from unisono.strategies.base import StateBundle, Updater

Run = tuple[int, int]
"""Shards ``first`` to ``last - 1``, which lie side by side."""
Age = tuple[int, int]
"""Generation and version of a copy."""


def holder(shard: int, shards: int, members: Addresses) -> Address:
    """Who holds a shard: a function of the members alone; neighbours lie with the same one.

    Servers, as long as there are any.
    """
    able = members.servers or members
    holders = min(shards, len(able))
    return able[shard * holders // shards]


def runs(numbers: Iterable[int], shards: int, members: Addresses) -> dict[Run, Address]:
    """Shards in runs that lie side by side with one holder."""
    found: dict[Run, Address] = {}
    last: tuple[Run, Address] | None = None
    for number in sorted(numbers):
        who = holder(number, shards, members)
        if last is not None and last[0][1] == number and last[1] == who:
            del found[last[0]]
            last = ((last[0][0], number + 1), who)
        else:
            last = ((number, number + 1), who)
        found[last[0]] = who
    return found


def bounds(run: Run, shards: int, count: int) -> tuple[int, int]:
    """Where a run lies in a vector of so many numbers."""
    return count * run[0] // shards, count * run[1] // shards


@dataclass
class Copy:
    """A shard as somebody knows it: the version, and the last push of each learner in it."""

    version: int = 0
    applied: dict[Address, int] = field(default_factory=dict)
    notes: dict[Address, Ranges] = field(default_factory=dict)
    """The work in it that its learners did not know to be committed when they pushed last."""
    generation: int = 0
    """The view with which its holder began: one who was presumed dead may still apply pushes."""

    @property
    def age(self) -> Age:
        """Later states of the shard compare as greater."""
        return self.generation, self.version

    def newer_than(self, other: Copy) -> bool:
        """Whether this is the later state of the shard."""
        return self.age > other.age

    def twin(self) -> Copy:
        """Another that does not change with this one: messages hold these."""
        return Copy(self.version, dict(self.applied), dict(self.notes), self.generation)


@dataclass
class Adder:
    """The updater of a shard that receives changes: learners have taken the steps."""

    values: Vector

    def step(self, gradient: Vector, rates: Sequence[float]) -> None:
        """Adds the change."""
        self.values.add(gradient)

    def state(self) -> StateBundle:
        """There is none."""
        return StateBundle()

    def load_state(self, bundle: StateBundle) -> None:
        """There is none."""


@dataclass
class Shard:
    """One writer's piece of the model.

    Pushes are applied in the order in which they come. A push of learner l with number n is applied
    once: ``applied`` has the last number of each learner, and travels with every copy, so that
    whoever takes the shard over knows it, too.

    With averaging, from the first push on that was computed past the point where it begins,

        mean <- mean + (x - mean) / t        t = 1, 2, ...

    over the iterates x after each applied push: the streaming form of their arithmetic mean. It is
    never fed back.
    """

    values: Vector
    updater: Updater
    copy: Copy
    mean: Vector | None = None
    averaged: int = 0

    def apply(
        self,
        pusher: Address,
        number: int,
        update: Vector,
        rates: Sequence[float],
        *,
        averages: bool,
    ) -> None:
        """Takes a step, unless this push is in it already."""
        if self.copy.applied.get(pusher, 0) >= number:
            return
        self.updater.step(update, rates)
        self.copy.applied[pusher] = number
        self.copy.version += 1
        if averages or self.mean is not None:  # a late push of early work counts, too
            self.averaged += 1
            if self.mean is None:
                self.mean = self.values.copy()
            else:
                self.mean.scale(1 - 1 / self.averaged)
                self.mean.add(self.values, 1 / self.averaged)

    @property
    def shown(self) -> Vector:
        """What is handed out: the mean, if there is one."""
        return self.values if self.mean is None else self.mean
