"""A learner's side of the coordinator: numbered messages that survive its restart."""

from __future__ import annotations

from typing import Any

from unisono.coordinator.service import BEATS, PATIENCE, PORT
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Body, Cancelled, Fabric, Gone, View


class Refused(Exception):  # noqa: N818
    """This incarnation has no place in the run any more: rejoin as the next one."""


class Abandoned(Exception):  # noqa: N818
    """The run has failed somewhere; the text is the first traceback."""

    def __init__(self, who: str, traceback: str) -> None:
        super().__init__(f"{who} failed:\n{traceback}")
        self.who = who
        self.traceback = traceback

    @property
    def line(self) -> str:
        """Why, in one line: what the coordinator itself finds is said in one."""
        if self.who == str(COORDINATOR):
            return self.traceback
        return f"{Address.parse(self.who).name} failed"


class CoordinatorLost(Exception):  # noqa: N818
    """The coordinator went away and did not come back."""


class Client:
    """Tells and asks the coordinator.

    Every operation has a number. What is not acknowledged, or still waits for its answer, is sent
    again, in order, when the coordinator has come back; it ignores what it has already, and gives
    the answer that was lost with it once more. ``heartbeats`` off is for explorations of all
    schedules, where nothing dies unseen.
    """

    def __init__(self, fabric: Fabric, timeout: float, *, heartbeats: bool = True) -> None:
        self._fabric = fabric
        self._timeout = timeout
        self._lock = fabric.lock()
        self._next = 0
        self._pending: dict[int, dict[str, Any]] = {}
        fabric.port("control", members=True)
        fabric.spawn("control", self._control)
        if heartbeats:
            fabric.spawn("heartbeat", self._beat)

    def tell(self, kind: str, **fields: Any) -> int:
        """Sends an operation; returns its number."""
        with self._lock:
            body = {"kind": kind, "sequence": self._next, **fields}
            self._next += 1
            self._pending[self._next - 1] = body
            self._try(body)
            return self._next - 1

    def call(self, kind: str, reply: str, **fields: Any) -> Body:
        """Sends an operation and waits for its answer on the port ``reply``."""
        sequence = self.tell(kind, reply=reply, **fields)
        while True:
            body = self._fabric.receive(reply).body
            if body.get("sequence") == sequence:
                self.answered(sequence)
                return body

    def is_pending(self, sequence: int) -> bool:
        """Whether the coordinator has not yet said that an operation is in its journal."""
        with self._lock:
            return sequence in self._pending

    def answered(self, sequence: int) -> None:
        """The answer to an operation is here; for those who asked with ``tell``."""
        with self._lock:
            self._pending.pop(sequence, None)
            self._acknowledged(sequence)

    def event(self, name: str, **fields: Any) -> None:
        """Sends a line for the metrics; it may be lost."""
        try:
            self._fabric.send(COORDINATOR, PORT, {"kind": "event", "event": name, **fields})
        except (Gone, Cancelled):
            return

    def _try(self, body: dict[str, Any]) -> bool:
        try:
            self._fabric.send(COORDINATOR, PORT, body)
        except Gone:
            return False
        return True

    def _acknowledged(self, sequence: int) -> None:
        """The journal has all up to this; what waits for an answer stays until that is here."""
        with self._lock:
            self._pending = {
                number: body
                for number, body in self._pending.items()
                if number > sequence or "reply" in body
            }

    def _send_again(self) -> None:
        with self._lock:
            for body in self._pending.values():
                if not self._try(body):
                    return

    def _control(self) -> None:
        while True:
            body = self._fabric.receive("control").body
            kind = body["kind"]
            if kind == "view":
                self._fabric.set_members(View.from_body(body))
            elif kind == "ack":
                self._acknowledged(body["sequence"])
            elif kind == "coordinator":
                self._send_again()
            elif kind == "refused":
                self._fabric.cancel(Refused())
            elif kind == "abandon":
                self._fabric.cancel(Abandoned(body["who"], body["traceback"]))

    def _beat(self) -> None:
        seen = self._fabric.now()
        while True:
            self._fabric.sleep(self._timeout / BEATS)
            alive = {"kind": "alive", "endpoint": self._fabric.endpoint}
            if self._try(alive):
                seen = self._fabric.now()
            elif self._fabric.now() - seen > PATIENCE * self._timeout:
                reason = f"the coordinator did not come back within {PATIENCE * self._timeout:g} s"
                self._fabric.cancel(CoordinatorLost(reason))
