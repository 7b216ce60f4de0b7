"""Axes of charts: round ticks, their labels, units that fit the range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Quantity(Enum):
    """What an axis counts; it decides the unit and how ticks are written."""

    COUNT = "count"
    TIME = "time"
    SHARE = "share"
    NUMBER = "number"


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` with its title and ticks (value, label)."""

    title: str
    low: float
    high: float
    ticks: list[tuple[float, str]]

    def place(self, value: float) -> float:
        """Returns where a value lies, 0 at the low end and 1 at the high end."""
        return (value - self.low) / (self.high - self.low)


_LEAST = 1e-30
"""What is below is drawn as 0: powers of ten end before floats do."""


def make_axis(
    title: str,
    values: Iterable[float],
    quantity: Quantity,
    *,
    zero: bool = False,
    snug: bool = False,
    most: int = 6,
) -> Axis:
    """Makes an axis for values.

    Args:
        title: what is drawn; a unit of time is added.
        values: all that must fit; both ends are ticks, unless told otherwise.
        quantity: what the values are.
        zero: begin at 0.
        snug: end at the greatest value.
        most: about how many ticks.
    """
    seen = [0.0 if abs(value) < _LEAST else value for value in values] or [0.0, 1.0]
    low, high = (0.0 if zero else min(seen)), max(seen)
    if high <= low:
        room = abs(low) * 0.1 or 1.0
        low, high = (low, low + room) if zero else (low - room, high + room)
    unit, scale = _unit(quantity, high)
    step = _round_step((high - low) / scale / most) * scale
    if not zero:
        low = math.floor(low / step + 1e-9) * step
    if not snug:
        high = math.ceil(high / step - 1e-9) * step
    if quantity is Quantity.SHARE:
        high = min(high, 1.0)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    ticks = [(first + i) * step for i in range(count)]
    labels = [_label(tick / scale, step / scale, quantity) for tick in ticks]
    return Axis(title + unit, low, high, list(zip(ticks, labels, strict=True)))


def short(value: float, digits: int = 3) -> str:
    """Writes a large count with the letter of its thousand: 12.3 k, 4.5 M."""
    rounded = float(f"{value:.{digits}g}")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= size:
            return f"{signed(f'{rounded / size:.{digits}g}')} {letter}"
    return signed(f"{rounded:.{digits}g}")


def duration(seconds: float) -> str:
    """Writes a time span in the unit that suits it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def signed(text: str) -> str:
    """Writes a hyphen before a number as the minus sign that it means."""
    return text.replace("-", "\N{MINUS SIGN}")


def _unit(quantity: Quantity, high: float) -> tuple[str, float]:
    if quantity is not Quantity.TIME:
        return "", 1.0
    if high < 180:
        return " (s)", 1.0
    return (" (min)", 60.0) if high < 3 * 3600 else (" (h)", 3600.0)


def _round_step(step: float) -> float:
    """Returns the least of 1, 2, 5 times a power of ten that is not below the step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= step * (1 - 1e-9))


def _label(value: float, step: float, quantity: Quantity) -> str:
    if quantity is Quantity.COUNT:
        return short(value)
    if quantity is Quantity.SHARE:
        return f"{value * 100:.{_decimals(step * 100)}f} %"
    return signed(f"{value + 0.0:.{_decimals(step)}f}")


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))
