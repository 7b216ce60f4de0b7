"""A learner's side of the coordinator: numbered messages that survive its restart."""

from __future__ import annotations

import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from unisono.coordinator.directives import (
    Abandon,
    Acknowledged,
    AskedToLeave,
    Failure,
    NotMember,
    ViewChanged,
    ViewPart,
)
from unisono.coordinator.messages import (
    CONTROL,
    PORT,
    Event,
    Heartbeat,
    Numbered,
    OfLearner,
    Reply,
    ReportMalformed,
    Request,
    RequestView,
    reply_port,
)
from unisono.coordinator.service import BEATS, MOST_BEAT_S, PATIENCE
from unisono.coordinator.status import Phase
from unisono.errors import Cause
from unisono.fabric.address import COORDINATOR
from unisono.fabric.api import Cancelled, CoordinatorFound, Fabric, Gone, Member, Rejected, View

A = TypeVar("A")


class Refused(Exception):  # noqa: N818
    """This incarnation has no place in the run any more: rejoin as the next one."""


class Abandoned(Exception):  # noqa: N818
    """The run has failed somewhere; the text is the first traceback."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.who} failed:\n{failure.text}")
        self.failure = failure

    @property
    def line(self) -> str:
        """The reason in one line; what the coordinator itself finds has only one."""
        if self.failure.who == COORDINATOR:
            return self.failure.text
        if self.failure.cause is Cause.DIVERGED:
            return f"{self.failure.who.name} diverged"
        return f"{self.failure.who.name} failed"


class CoordinatorLost(Exception):  # noqa: N818
    """The coordinator was lost and did not come back in time."""


class Client:
    """Sends operations and requests to the coordinator.

    Operations are numbered. Those not acknowledged, or still waiting for an answer, are sent
    again, in order, to a restarted coordinator; it ignores those that it has, and repeats answers
    that were lost. Exhaustive explorations of schedules go without ``heartbeats``.
    """

    def __init__(self, fabric: Fabric, timeout: float, *, heartbeats: bool = True) -> None:
        self._fabric = fabric
        self._timeout = timeout
        self._lock = fabric.lock()
        self._next = 0
        self._pending: dict[int, Numbered] = {}
        self.phase: Callable[[], Phase | None] = lambda: None
        """What heartbeats report of the learner."""
        self.asked_to_leave = False
        """Whether this learner is to leave before the end of the run."""
        self._wants_view = False
        self._members: tuple[Member, ...] = ()
        """Of a view of which not all parts have arrived."""
        fabric.port(CONTROL, members=True)
        fabric.spawn("control", self._control)
        if heartbeats:
            fabric.spawn("heartbeat", self._beat)

    def tell(self, operation: OfLearner, reply: str = "") -> int:
        """Sends an operation and returns its number; an answer comes to the port ``reply``."""
        with self._lock:
            sequence = self._next
            self._next += 1
            self._pending[sequence] = Numbered(sequence, operation, reply)
            self._try(self._pending[sequence])
            return sequence

    def call(self, request: Request[A], reply: str) -> A:
        """Sends an operation and waits for its answer on the port ``reply``."""
        sequence = self.tell(typing.cast("OfLearner", request), reply)
        port = reply_port(reply)
        while True:
            answer = self.answer_to(request, sequence, self._fabric.receive(port).body)
            if answer is not None:
                return answer

    def answer_to(self, request: Request[A], sequence: int, reply: Reply) -> A | None:
        """The answer, if ``reply`` is to the request of that number, else None."""
        if reply.sequence != sequence:
            return None
        assert isinstance(reply.answer, request.answers()), reply
        with self._lock:
            self._pending.pop(sequence, None)
            self._acknowledged(sequence)
        return typing.cast("A", reply.answer)

    def is_pending(self, sequence: int) -> bool:
        """Whether an operation is not acknowledged yet."""
        with self._lock:
            return sequence in self._pending

    def event(self, name: str, **fields: Any) -> None:
        """Sends a line for the metrics; it may be lost."""
        with suppress(Gone, Cancelled):
            self._fabric.send(COORDINATOR, PORT, Event(name, fields))

    def _try(self, message: Numbered | Heartbeat | RequestView) -> bool:
        try:
            self._fabric.send(COORDINATOR, PORT, message)
        except Gone:
            return False
        return True

    def _acknowledged(self, sequence: int) -> None:
        """Forgets operations up to a number, except those that wait for an answer."""
        with self._lock:
            self._pending = {
                number: message
                for number, message in self._pending.items()
                if number > sequence or message.reply
            }

    def _send_again(self) -> None:
        with self._lock:
            for message in self._pending.values():
                if not self._try(message):
                    return
        if self._wants_view:
            self._try(RequestView())

    def _control(self) -> None:
        while True:
            match self._fabric.receive(CONTROL).body:
                case ViewChanged() as change:
                    self._change_view(change)
                case ViewPart() as part:
                    self._collect_view(part)
                case Acknowledged(sequence):
                    self._acknowledged(sequence)
                case CoordinatorFound():
                    self._send_again()
                case NotMember():
                    self._fabric.cancel(Refused())
                case AskedToLeave():
                    self.asked_to_leave = True
                case Abandon(failure):
                    self._fabric.cancel(Abandoned(failure))
                case Rejected(who, why) if who == COORDINATOR:
                    reason = f"the coordinator sent a malformed message ({why})"
                    self._fabric.cancel(CoordinatorLost(reason))
                case Rejected(who, why):
                    self.tell(ReportMalformed(who, why))

    def _change_view(self, change: ViewChanged) -> None:
        view = self._fabric.members()
        if change.version <= view.version:
            return
        if change.since == view.version:
            view = view.after(change.version, change.joined, change.gone)
            self._fabric.set_members(view)
        elif not self._wants_view:
            self._wants_view = True
            self._try(RequestView())

    def _collect_view(self, part: ViewPart) -> None:
        """Parts come in order, unless the coordinator died in between."""
        if part.part == 0:
            self._members = ()
        self._members += part.members
        if part.part == part.parts - 1:
            self._wants_view = False
            self._fabric.set_members(View(part.version, self._members).shared())

    def _beat(self) -> None:
        seen = self._fabric.now()
        while True:
            self._fabric.sleep(min(self._timeout / BEATS, MOST_BEAT_S))
            if self._try(Heartbeat(self._fabric.endpoint, self.phase())):
                seen = self._fabric.now()
            elif self._fabric.now() - seen > PATIENCE * self._timeout:
                reason = f"the coordinator did not come back within {PATIENCE * self._timeout:g} s"
                self._fabric.cancel(CoordinatorLost(reason))
