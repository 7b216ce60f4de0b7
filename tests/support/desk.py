"""A coordinator's state with learners that write to it by hand."""

from __future__ import annotations

from collections import deque
from typing import Any

from unisono.coordinator.output import Output
from unisono.coordinator.state import State
from unisono.fabric import Address, learner
from unisono.pool.ranges import RangeSet


class Desk:
    """Numbers the operations of each learner, as its client would."""

    def __init__(self, expected: int) -> None:
        self.state = State(expected)
        self.operations: list[dict[str, Any]] = []
        self._next: dict[Address, int] = {}

    def tell(self, number: int, kind: str, /, incarnation: int = 0, **fields: Any) -> list[Output]:
        who = learner(number, incarnation)
        sequence = self._next.get(who, 0)
        self._next[who] = sequence + 1
        operation = {"kind": kind, "who": str(who), "sequence": sequence, **fields}
        self.operations.append(operation)
        return self.state.apply(operation)

    def call(self, number: int, kind: str, /, **fields: Any) -> dict[str, Any]:
        """The answer, which must come at once."""
        outputs = self.tell(number, kind, reply="answers", **fields)
        incarnation = fields.get("incarnation", 0)
        answers = [
            o.body for o in outputs if o.port == "answers" and o.to == learner(number, incarnation)
        ]
        assert len(answers) == 1, outputs
        return answers[0]

    def enrol(self, number: int, incarnation: int = 0, **job: Any) -> dict[str, Any]:
        """Joins and opens."""
        self.call(number, "join", incarnation=incarnation, endpoint="here")
        job = {
            "total": 12,
            "sharding": "static",
            "share": 2,
            "rounds": 2,
            "commits_by_round": True,
            "fingerprint": "the same",
            **job,
        }
        return self.call(
            number, "open", incarnation=incarnation, job=job, committed=[], sync_round=0
        )

    def lose(self, number: int, incarnation: int = 0) -> list[Output]:
        """The service declares a learner dead."""
        operation = {"kind": "lost", "who": str(learner(number, incarnation)), "reason": "test"}
        self.operations.append(operation)
        return self.state.apply(operation)


def picture(thing: Any) -> Any:
    """All that an object holds, as plain data that can be compared."""
    if thing is None or isinstance(thing, str | int | float):
        return thing
    if isinstance(thing, Address):
        return str(thing)
    if isinstance(thing, RangeSet):
        return list(thing)
    if isinstance(thing, dict):
        return {str(picture(k)): picture(v) for k, v in sorted(thing.items(), key=str)}
    if isinstance(thing, set):
        return sorted(str(picture(v)) for v in thing)
    if isinstance(thing, list | tuple | deque):
        return [picture(v) for v in thing]
    # What was sent last is no part of the memory.
    return {k: picture(v) for k, v in vars(thing).items() if k != "_out"}
