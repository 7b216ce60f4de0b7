"""Learning rates over a run, as functions of its progress: the share of all data seen, 0 to 1.

A schedule knows no step, no clock and no torch, so it is the same for every strategy, every number
of learners and every minibatch, and goes on by itself where a run is resumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """The learning rate at any moment of a run."""

    def rate(self, progress: float) -> float:
        """The learning rate when ``progress``, 0 to 1, of the data is seen."""

    def describe(self) -> str:
        """A few words for a person."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same rate throughout: rate(p) = start."""

    start: float

    def rate(self, progress: float) -> float:
        return self.start

    def describe(self) -> str:
        return f"{self.start:g} throughout"


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Falls by the same factor over equal shares of the data: rate(p) = start * end ** p."""

    start: float
    end: float
    """The last rate as a share of the first."""

    def rate(self, progress: float) -> float:
        """``start * end ** progress``."""
        return self.start * math.pow(self.end, progress)

    def describe(self) -> str:
        return f"{self.start:g} at the start, {self.start * self.end:g} at the end"


@dataclass(frozen=True, kw_only=True)
class Power:
    """Falls as t ** (-2/3): what a running mean of the iterates wants in a single pass.

    Averaged SGD steps with g_t = g_0 (1 + a g_0 t) ** (-c). With c = 1, as without a mean, the
    iterates come to rest too early for a mean to gain anything; 2/3 leaves them moving. In shares
    of the data, with a g_0 chosen so that the last rate is ``end`` of the first,

        rate(p) = start * (1 + p * (end ** (-3/2) - 1)) ** (-2/3).
    """

    start: float
    end: float
    """The last rate as a share of the first."""

    def rate(self, progress: float) -> float:
        """``start`` at first, ``start * end`` at last."""
        return self.start * math.pow(1.0 + progress * (math.pow(self.end, -1.5) - 1.0), -2.0 / 3.0)

    def describe(self) -> str:
        return f"{self.start:g} at the start, {self.start * self.end:g} at the end, as t^(-2/3)"


@dataclass(frozen=True, kw_only=True)
class Switched:
    """One schedule until a share of the data is seen, another one after it."""

    first: Schedule
    until: float
    rest: Schedule

    def rate(self, progress: float) -> float:
        return (self.first if progress <= self.until else self.rest).rate(progress)

    def describe(self) -> str:
        return (
            f"{self.first.rate(0.0):g} at the start, {self.rest.rate(self.until):g} after "
            f"{100 * self.until:g}%, {self.rest.rate(1.0):g} at the end"
        )


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The rate that several learners take together, reached gradually.

    With ``inner`` the schedule of one learner, W learners step ``factor`` times as far (W times,
    where a step of one of them counts for 1/W in the mean), but not yet while the gradients are
    large and change quickly:

        rate(p) = inner(p) * (1 + (factor - 1) * min(1, p / warmup)),

    so a run begins at the rate of one learner, and after the warm-up the rate is in proportion.
    """

    inner: Schedule
    factor: float
    warmup: float
    """The share of the run in which the rate rises."""

    def rate(self, progress: float) -> float:
        """The inner rate, times 1 at first and ``factor`` after the warm-up."""
        risen = 1.0 if progress >= self.warmup else progress / self.warmup
        return self.inner.rate(progress) * (1.0 + (self.factor - 1.0) * risen)

    def describe(self) -> str:
        top = f"times {self.factor:g} after {100 * self.warmup:g}% of the run"
        return f"{self.inner.describe()}; {top}: at most {self.peak():.3g}"

    def peak(self) -> float:
        """The highest rate, at the end of the warm-up where the inner schedule falls."""
        return max(self.rate(0.0), self.rate(self.warmup))


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """What large batches need: up to a rate in proportion to the batch, then 1/sqrt(2) an epoch.

    A rate that W learners may take together is up to W times that of one, but not yet while the
    gradients are large and change quickly. With e = p * epochs, the epochs seen so far,

        rate(e) = start * (1 + (factor - 1) * e / warmup)      for e < warmup
        rate(e) = start * factor * 2 ** (-(e - warmup) / 2)    after it,

    so it begins at the rate of one learner, is continuous, and is multiplied by 1/sqrt(2) over
    every epoch after the warm-up. Where the factor is 1, as for one learner, nothing is warmed up
    to: the rate is kept for ``warmup`` epochs and falls then.
    """

    start: float
    """The rate that is right for one learner."""
    factor: float
    """By what the batch, or the strategy's own rule, multiplies it."""
    warmup: float
    """Epochs of warm-up."""
    epochs: float
    """Epochs of the whole run."""

    def rate(self, progress: float) -> float:
        """Linear, then halved every two epochs."""
        epoch = progress * self.epochs
        if epoch < self.warmup:
            return self.start * (1.0 + (self.factor - 1.0) * epoch / self.warmup)
        return self.start * self.factor * math.pow(2.0, -(epoch - self.warmup) / 2.0)

    def describe(self) -> str:
        top = f"{self.start * self.factor:g} after epoch {self.warmup:g}"
        return f"{self.start:g} at the start, {top}, then 1/sqrt(2) an epoch"
