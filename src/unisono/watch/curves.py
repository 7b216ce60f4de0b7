"""Curves that grow with a run, and stay small."""

from __future__ import annotations

Point = tuple[float, float]

MOST_BINS = 240
"""Points of a curve of means."""


class MeanCurve:
    """Means over equal stretches of time, which become longer as the run does."""

    def __init__(self) -> None:
        self._width = 1.0
        self._bins: dict[int, tuple[float, int]] = {}

    def add(self, time: float, value: float) -> None:
        """One value."""
        place = int(time // self._width)
        total, count = self._bins.get(place, (0.0, 0))
        self._bins[place] = (total + value, count + 1)
        while len(self._bins) > MOST_BINS:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        wider: dict[int, tuple[float, int]] = {}
        for place, (total, count) in self._bins.items():
            before, seen = wider.get(place // 2, (0.0, 0))
            wider[place // 2] = (before + total, seen + count)
        self._bins = wider

    def points(self) -> list[Point]:
        """The means, each at the middle of its stretch."""
        return [
            ((place + 0.5) * self._width, total / count)
            for place, (total, count) in sorted(self._bins.items())
        ]
