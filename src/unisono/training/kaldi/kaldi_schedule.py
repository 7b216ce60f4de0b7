"""The numbers of Kaldi's averaging recipe, as plain functions of where a run is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unisono.errors import UserError

MOST_EVALUATIONS = 30
"""Averages that are tried at the end, at most."""


def round_count(minibatches: int, share: int, first: int, last: int) -> int:
    """Rounds of a run, each of ``share`` minibatches of each learner; the last may be short.

    Where the learners ramp from ``first`` to ``last`` there are (first + last) / 2 on average:
    Kaldi's 2 archives / (first + last), of archives of ``share`` minibatches.
    """
    return max(1, math.ceil(2 * minibatches / (share * (first + last))))


def learners_in(round_: int, rounds: int, first: int, last: int) -> int:
    """Learners of a round where they ramp from ``first`` to ``last``: linear, half rounded up."""
    return math.floor(first + (last - first) * round_ / rounds + 0.5)


def progress_in(seen: float, share: float) -> float:
    """The progress that a whole round's learning rate is computed from.

    Args:
        seen: The share of all data that was seen before the round.
        share: That of a full round.

    Returns:
        ``seen``; in the last round 1, so that the run ends with exactly the final rate.
    """
    return 1.0 if seen + share >= 1.0 - 1e-9 else seen


def combined_rounds(rounds: int, half_epoch: int, most: int) -> list[int]:
    """The rounds, counted from 0, whose models are combined at the end.

    The last ``most`` of them, but no more than half of all; where half an epoch and one more
    round are longer than that, the last half epoch, thinned out to about ``most`` models.

    Args:
        rounds: Rounds of the run.
        half_epoch: Rounds in half an epoch, with the learners of the end.
        most: Models to combine.
    """
    if most == 0:
        return []
    half = max(1, rounds // 2)
    span = min(half_epoch + 1, half) if half_epoch + 1 > most else min(most, half)
    apart = math.ceil(span / most)
    return sorted(rounds - 1 - back for back in range(0, span, apart))


@dataclass(frozen=True)
class DropoutSchedule:
    """The share that is dropped: straight lines between points in the share of data seen."""

    points: tuple[tuple[float, float], ...]
    """(data seen, share dropped), rising in data seen from 0 to 1."""

    @classmethod
    def parse(cls, text: str) -> DropoutSchedule:
        """Reads Kaldi's ``v0,v@x,...,v1``: at the start, points between, at the end.

        One point between may lack its ``@x``: it stands at 0.5. So ``0,0@0.2,0.5@0.5,0`` is none
        during the first fifth, rises to a half in the middle of the run, and falls to 0.

        Raises:
            UserError: Not such a text.
        """
        parts = text.split(",")
        if len(parts) < 2:
            raise _not_read(text, "it needs a value for the start and one for the end")
        points = []
        for place, part in enumerate(parts):
            value, at, where = part.partition("@")
            inside = 0 < place < len(parts) - 1
            try:
                seen = float(where) if at else (0.5 if inside else float(place > 0))
                share = float(value)
            except ValueError:
                raise _not_read(text, f"{part!r} is not a number, or two with @") from None
            if at and not inside:
                raise _not_read(text, "the first and the last stand at 0 and at 1")
            if not 0 <= share < 1:
                raise _not_read(text, f"{value} is not in [0, 1)")
            points.append((seen, share))
        seens = [seen for seen, _ in points]
        if seens != sorted(seens) or not 0 <= seens[0] <= seens[-1] <= 1:
            raise _not_read(text, "its points must follow each other between 0 and 1")
        return cls(tuple(points))

    @property
    def most(self) -> float:
        """The largest share that is ever dropped."""
        return max(share for _, share in self.points)

    def at(self, seen: float) -> float:
        """The share to drop when so much of the data is seen."""
        (before, low), *rest = self.points
        for after, high in rest:
            if seen <= after:
                if after == before:
                    return high
                return low + (high - low) * (seen - before) / (after - before)
            before, low = after, high
        return low


def _not_read(text: str, why: str) -> UserError:
    return UserError(f"recipe.dropout is {text!r}: {why}; for example 0,0@0.2,0.5@0.5,0")
