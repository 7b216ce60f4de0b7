"""Operations are applied in order and once; answers can be repeated."""

from __future__ import annotations

from unisono.coordinator.messages import Answer, Command, Reply
from unisono.coordinator.output import Output
from unisono.fabric.address import Address


class Delivery:
    """The numbers of the members' operations, their last answers, and the messages to send."""

    def __init__(self) -> None:
        self._last: dict[Address, int] = {}
        self._answers: dict[tuple[Address, str], tuple[int, Output]] = {}
        self._out: list[Output] = []

    def knows(self, who: Address) -> bool:
        """Whether any operation of this incarnation was applied."""
        return who in self._last

    def last(self, who: Address) -> int:
        """The number of a member's last operation that was applied; -1: none was."""
        return self._last.get(who, -1)

    def is_next(self, command: Command) -> bool:
        """Whether it is the next one of its sender.

        One that is not was applied before, or follows one that was lost with the last coordinator;
        in that case all are sent again, in order.
        """
        return command.sequence == self.last(command.who) + 1

    def take(self, command: Command) -> None:
        assert command.sequence is not None
        self._last[command.who] = command.sequence

    def send(self, output: Output) -> None:
        self._out.append(output)

    def answer(self, command: Command, answer: Answer) -> None:
        """Sends the answer to an operation, and keeps it."""
        assert command.sequence is not None
        output = Output(command.who, command.reply, Reply(command.sequence, answer))
        self._answers[command.who, command.reply] = command.sequence, output
        self.send(output)

    def repeat(self, command: Command) -> list[Output]:
        """The answer to an operation that was applied before, if it has been given."""
        sequence, output = self._answers.get((command.who, command.reply), (None, None))
        return [output] if output is not None and sequence == command.sequence else []

    def out(self) -> list[Output]:
        out, self._out = self._out, []
        return out
