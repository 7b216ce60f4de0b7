"""Means over a few seeds, and how far they can be believed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.9
"""The share of intervals that hold the true mean."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; of a single value no interval is known."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of n values with Student's interval.

    With s the values' standard deviation (divided by n - 1), mean and true mean differ by less than
    t s / sqrt(n) in ``LEVEL`` of all cases, if the values are independent and normal: t is the
    quantile of Student's distribution with n - 1 degrees of freedom. Of *differences* between two
    ways of training with the same seeds this is the paired interval: what a seed does to both
    cancels.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    reach = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - reach, mean + reach)


def student(freedom: int, level: float = LEVEL) -> float:
    """The t for which |T| < t has probability ``level``, T with ``freedom`` degrees of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _inside(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _inside(angle: float, freedom: int) -> float:
    """P(|T| < t) for angle = atan(t / sqrt(freedom)): a finite sum for whole degrees of freedom.

    The density of T is proportional to cos(angle) ** (freedom - 1) in the angle, whose integral
    follows from n I_n = sin cos ** (n - 1) + (n - 1) I_(n-2), with I_0 = angle and I_1 = sin.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    first = 2 if freedom % 2 else 3
    integral, whole = (angle, math.pi / 2) if freedom % 2 else (sine, 1.0)
    for n in range(first, freedom, 2):
        integral = (sine * cosine ** (n - 1) + (n - 1) * integral) / n
        whole *= (n - 1) / n
    return integral / whole
