"""Credit between threads: how many messages of a sender may be unconsumed at a port."""

from __future__ import annotations

import threading
from collections.abc import Callable

from unisono.fabric.api import CREDIT, Full
from unisono.fabric.frames import ProtocolError

_BATCH = CREDIT // 2


class SendCredits:
    """The sender's side: how many messages it may still send to each port of one receiver.

    ``changed`` is the sending node's: a declared death or a cancelling wakes all that wait, also
    those whose connection has ended.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._used: dict[str, int] = {}
        self._changed = changed

    def take(self, port: str, check: Callable[[], None] | None) -> None:
        """Uses one credit; waits for it as long as ``check`` does not raise."""
        with self._changed:
            while self._used.get(port, 0) >= CREDIT:
                if check is None:
                    raise Full
                check()
                self._changed.wait()
            self._used[port] = self._used.get(port, 0) + 1

    def give(self, port: str, count: int) -> None:
        """Takes credits back from the receiver."""
        with self._changed:
            if count > self._used.get(port, 0):
                raise ProtocolError(f"more credit for port {port[:40]!r} than was used")
            self._used[port] -= count
            self._changed.notify_all()


class CreditReturns:
    """The receiver's side: credit goes back a few at a time, and never too late.

    Let u be the credits that the sender has used, r what has arrived here and was not credited
    yet, w what of r is consumed. A sender waits only if u = CREDIT; then r grows to CREDIT, too. So
    w may be held back while r < CREDIT, and is given back at once when r = CREDIT: the sender
    never waits while fewer than CREDIT messages are unconsumed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        self._consumed: dict[str, int] = {}

    def arrive(self, port: str) -> int:
        """A message has come; how many credits are to be given back now."""
        with self._lock:
            if self._open.get(port, 0) == CREDIT:
                raise ProtocolError(f"more than {CREDIT} unconsumed messages at port {port[:40]!r}")
            self._open[port] = self._open.get(port, 0) + 1
            return self._due(port, at_once=False)

    def consume(self, port: str, *, at_once: bool) -> int:
        """A message was consumed; how many credits are to be given back now."""
        with self._lock:
            self._consumed[port] = self._consumed.get(port, 0) + 1
            return self._due(port, at_once)

    def _due(self, port: str, at_once: bool) -> int:
        count = self._consumed.get(port, 0)
        if not (at_once or count >= _BATCH or self._open[port] >= CREDIT):
            return 0
        self._open[port] -= count
        self._consumed[port] = 0
        return count
