"""A coordinator's state with learners that write to it by hand."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from unisono.coordinator.job import Job, Sharding
from unisono.coordinator.messages import (
    Command,
    Join,
    LossReason,
    Lost,
    Mismatch,
    OfLearner,
    Open,
    Opened,
    Reply,
    Request,
)
from unisono.coordinator.output import Output
from unisono.coordinator.requests import Requested
from unisono.coordinator.state import State
from unisono.fabric import Address, learner
from unisono.fabric.address import COORDINATOR
from unisono.pool.ranges import RangeSet

A = TypeVar("A")


class Desk:
    """Numbers the operations of each learner, as its client would."""

    def __init__(self, expected: int) -> None:
        self.state = State(expected)
        self.commands: list[Command] = []
        self._next: dict[Address, int] = {}

    def tell(
        self, number: int, operation: OfLearner, *, incarnation: int = 0, reply: str = ""
    ) -> list[Output]:
        who = learner(number, incarnation)
        sequence = self._next.get(who, 0)
        self._next[who] = sequence + 1
        return self._apply(Command(who, operation, sequence, reply))

    def call(self, number: int, request: Request[A], *, incarnation: int = 0) -> A:
        """The answer, which must come at once."""
        operation = cast("OfLearner", request)
        outputs = self.tell(number, operation, incarnation=incarnation, reply="answers")
        (answer,) = answers(outputs, learner(number, incarnation))
        assert isinstance(answer, request.answers())
        return cast("A", answer)

    def enrol(
        self, number: int, incarnation: int = 0, digest: str = "", round_: int = 0, **fields: Any
    ) -> Opened | Mismatch:
        """Joins and opens."""
        self.call(number, Join("here"), incarnation=incarnation)
        return self.open(number, incarnation, digest, round_, **fields)

    def open(
        self, number: int, incarnation: int = 0, digest: str = "", round_: int = 0, **fields: Any
    ) -> Opened | Mismatch:
        """Says what is to be trained, and which state it comes with."""
        usual: dict[str, Any] = {
            "total": 12,
            "sharding": Sharding.STATIC,
            "pace": ((0, 2),),
            "rounds": 2,
            "commits_by_round": True,
            "fingerprint": "the same",
        }
        job = Job(**(usual | fields))
        return self.call(number, Open(job, (), round_, digest), incarnation=incarnation)

    def lose(self, number: int, incarnation: int = 0) -> list[Output]:
        """The service declares a learner dead."""
        lost = Lost(LossReason.PROCESS_ENDED)
        return self._apply(Command(learner(number, incarnation), lost))

    def request(self, requested: Requested) -> list[Output]:
        """Somebody asks for something while the run runs."""
        return self._apply(Command(COORDINATOR, requested))

    def _apply(self, command: Command) -> list[Output]:
        self.commands.append(command)
        return self.state.apply(command)


def answers(outputs: list[Output], to: Address | None = None) -> list[Any]:
    """The answers among what is to be sent, of all or of one learner."""
    return [
        output.body.answer
        for output in outputs
        if isinstance(output.body, Reply) and to in (None, output.to)
    ]


def picture(thing: Any) -> Any:
    """All that an object holds, as plain data that can be compared."""
    if thing is None or isinstance(thing, str | int | float | Enum):
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
    if is_dataclass(thing) and thing.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return {field.name: picture(getattr(thing, field.name)) for field in fields(thing)}
    # What was sent last is no part of the memory.
    return {k: picture(v) for k, v in vars(thing).items() if k not in ("_out", "_run")}
