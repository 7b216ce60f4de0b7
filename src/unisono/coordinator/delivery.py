"""Operations come in order and count once; answers can be given again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unisono.coordinator.output import Output
from unisono.fabric.address import Address


class Delivery:
    """The numbers of the members' operations, the last answers, and what is to be sent."""

    def __init__(self) -> None:
        self._last: dict[Address, int] = {}
        self._answers: dict[tuple[Address, str], Output] = {}
        self._out: list[Output] = []

    def knows(self, who: Address) -> bool:
        """Whether this incarnation has ever sent an operation that was taken."""
        return who in self._last

    def last(self, who: Address) -> int:
        """The last operation of a member that was taken; -1 if none was."""
        return self._last.get(who, -1)

    def is_next(self, who: Address, operation: Mapping[str, Any]) -> bool:
        """Whether it is the next one of its sender.

        One that is not has come before, or has overtaken what the last coordinator lost: then all
        is sent again, in order.
        """
        return bool(operation["sequence"] == self.last(who) + 1)

    def take(self, who: Address, operation: Mapping[str, Any]) -> None:
        """The operation counts from now on."""
        self._last[who] = operation["sequence"]

    def send(self, output: Output) -> None:
        """Adds a message."""
        self._out.append(output)

    def answer(self, who: Address, operation: Mapping[str, Any], body: dict[str, Any]) -> None:
        """Adds the answer to an operation, and keeps it."""
        body = {**body, "sequence": operation["sequence"]}
        output = Output(who, operation["reply"], body)
        self._answers[who, operation["reply"]] = output
        self.send(output)

    def repeat(self, who: Address, operation: Mapping[str, Any]) -> list[Output]:
        """The answer to an operation that came before, if it has been given."""
        answer = self._answers.get((who, operation.get("reply", "")))
        if answer is not None and answer.body["sequence"] == operation["sequence"]:
            return [answer]
        return []

    def out(self) -> list[Output]:
        """What is to be sent, once."""
        out, self._out = self._out, []
        return out
