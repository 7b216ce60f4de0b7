"""metrics.jsonl: one event per line, readable while the run is going on and after a kill.

An event is a JSON object with `event` (its name), `time` (seconds since the run began) and
`learner` (a number, or null where the event is nobody's own).
docs/reference/events.md lists the names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.errors import UserError
from unisono.text import json_line

Event = dict[str, Any]

_HUGE = 1e100
"""No number of a run is larger, but for damage; sums and products of smaller ones are finite."""


def format_event(event: Mapping[str, object]) -> bytes:
    """Returns the line of an event, with its line end: append it in one write."""
    return json_line(event)


def read_metrics(path: Path) -> list[Event]:
    """Reads all events.

    A last line without its line end is what a kill leaves behind: it is ignored unless it is
    whole. Any other line that is not an event is a fault of the file.

    Raises:
        UserError: the file cannot be read, or a line is no event; tells its number.
    """
    events: list[Event] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                event = parse_event(line)
                if event is not None:
                    events.append(event)
                elif line.endswith(b"\n"):
                    raise UserError(f"{path}, line {number}: not an event; mend or remove the line")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return events


def goes_on(event: Event, before: float) -> bool:
    """Whether a run was gone on with here, by another clock; ``before``: the time before."""
    if event["event"] != "start":
        return False
    return event.get("resumed") is True or bool(event["time"] < before)


def since_resumption(events: Sequence[Event]) -> list[Event]:
    """The events of a run since it was last gone on with."""
    first, before = 0, float("-inf")
    for place, event in enumerate(events):
        first = place if goes_on(event, before) else first
        before = event["time"]
    return list(events[first:])


def began_at(events: Sequence[Event], first_learners: int) -> float:
    """When training began: as the last of the first learners joined.

    Where some were late the others began without them; the first to tell of training tells it then.
    """
    joined = [event["time"] for event in events if event["event"] == "joined"][:first_learners]
    trained = [event["time"] for event in events if event["event"] == "train"]
    return min(max(joined, default=0.0), min(trained, default=float("inf")))


def cut_torn_line(path: Path) -> None:
    """Makes the file end with a whole line, so that a resumed run can append to it."""
    with path.open("r+b") as file:
        content = file.read()
        kept = content[: content.rfind(b"\n") + 1]
        rest = content[len(kept) :]
        if parse_event(rest) is not None:
            file.write(b"\n")
        else:
            file.truncate(len(kept))


def parse_event(line: bytes) -> Event | None:
    """Reads a line; None: it is no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    return event if is_number(event.get("time")) and "learner" in event else None


def is_number(value: object) -> bool:
    """Whether it can be computed with: it is no truth value, not NaN, and not huge."""
    is_some = isinstance(value, int | float) and not isinstance(value, bool)
    return is_some and -_HUGE < value < _HUGE  # type: ignore[operator]
