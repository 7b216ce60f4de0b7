"""A port's queue, for fabrics whose activities are threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from unisono.fabric.address import Address
from unisono.fabric.api import Gone, Message, TimedOut


class Port:
    """Messages in order of arrival; several threads may wait, each for its own sender."""

    def __init__(self) -> None:
        self.members = False
        self.lost = False
        self._queue: deque[Message] = deque()
        self._ready = threading.Condition()

    def put(self, message: Message) -> None:
        """Adds a message and wakes who waits."""
        with self._ready:
            self._queue.append(message)
            self._ready.notify_all()

    def clear(self) -> None:
        """Lets go of messages that nobody will receive, and of the memory that they borrow."""
        with self._ready:
            self._queue.clear()

    def wake(self) -> None:
        """Lets waiters look again: somebody is gone, or the node was cancelled."""
        with self._ready:
            self._ready.notify_all()

    def take(
        self,
        from_: Address | None,
        timeout: float | None,
        gone: Callable[[Address], bool],
        check: Callable[[], None],
    ) -> Message:
        """The next message (of ``from_``); all that came before a death comes before ``Gone``.

        ``check`` raises when the node was cancelled.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._ready:
            while True:
                check()
                for place, message in enumerate(self._queue):
                    if from_ is None or message.sender == from_:
                        del self._queue[place]
                        return message
                if from_ is not None and gone(from_):
                    raise Gone(from_)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimedOut
                self._ready.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
