"""The option ``every``: how many examples a learner trains between two rounds or exchanges.

A number; ``auto``, the default: as often as the measured cost of a round allows
(``unisono.coordinator.pace``); or, to repeat a run bit for bit, the pace that was chosen in it:
``0:1024 6:2048`` is 1024 examples up to round 6, and 2048 from there on.
"""

from __future__ import annotations

import re
from typing import Any

from unisono.coordinator.pace import LEAST_SHARE, OVERHEAD, PaceSchedule
from unisono.errors import UserError

AUTO = "auto"
_SCHEDULE = re.compile(r"0:[1-9]\d*( [1-9]\d*:[1-9]\d*)*")


def check_every(every: int | str) -> None:
    """Raises ``UserError`` for anything else."""
    if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
        return
    if isinstance(every, str) and (every == AUTO or _SCHEDULE.fullmatch(every)):
        return
    raise UserError(f"every is {every!r}: it must be a number of examples from 1 on, or auto")


def divide(every: int | str, frames: int) -> int | str:
    """Converts frames into examples of so many frames each."""
    if isinstance(every, int):
        return max(1, every // frames)
    if every == AUTO:
        return every
    return format_schedule((round_, max(1, n // frames)) for round_, n in _pairs(every))


def plan_pace(every: int | str, batch_size: int) -> dict[str, Any]:
    """The arguments of a ``RoundPlan`` for this pace, in minibatches."""
    if isinstance(every, int):
        return {"share": _minibatches(every, batch_size)}
    if every == AUTO:
        return {"share": LEAST_SHARE, "adaptive_pace": True}
    pace: PaceSchedule = tuple((r, _minibatches(n, batch_size)) for r, n in _pairs(every))
    return {"share": pace[0][1], "pace": pace}


def format_schedule(pairs: Any) -> str:
    """Formats pairs of (number of a round, examples from that round on)."""
    return " ".join(f"{round_}:{examples}" for round_, examples in pairs)


def describe_every(every: int | str) -> str:
    """In words."""
    if every == AUTO:
        return f"every {LEAST_SHARE} minibatches, rarer where that costs over {100 * OVERHEAD:g}%"
    return f"every {every} examples" if isinstance(every, int) else f"as in {every!r}"


def _pairs(text: str) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in (pair.split(":") for pair in text.split())]


def _minibatches(examples: int, batch_size: int) -> int:
    """Whole minibatches, at least one."""
    return max(1, round(examples / batch_size))
