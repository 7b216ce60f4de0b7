"""The one thread of a process that waits on its sockets."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable


class Reactor:
    """Runs callbacks when sockets are readable or writable, commands of other threads, and timers.

    Everything that reads a socket happens in this thread, so that what a peer sent before it died
    can be read to its end before its death is told.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._commands: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="unisono-io", daemon=True)
        self._thread.start()

    def call(self, command: Callable[[], None]) -> None:
        """Runs ``command`` in the reactor's thread, soon."""
        self._commands.append(command)
        os.eventfd_write(self._wake, 1)

    def call_later(self, seconds: float, command: Callable[[], None]) -> None:
        """Runs ``command`` after a while; only from the reactor's own thread."""
        self._timers.append((time.monotonic() + seconds, command))

    def watch(
        self, sock: socket.socket, readable: Callable[[], None], writable: Callable[[], None] | None
    ) -> None:
        """Calls back when the socket can be read, and written if asked; reactor's thread only."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        try:
            self._selector.modify(sock, events, (readable, writable))
        except KeyError:
            self._selector.register(sock, events, (readable, writable))

    def forget(self, sock: socket.socket) -> None:
        """Stops watching; reactor's thread only."""
        try:
            self._selector.unregister(sock)
        except (KeyError, ValueError):
            return

    def stop(self) -> None:
        """Ends the thread after the commands that were given before."""
        self.call(self._stop)
        self._thread.join()
        self._selector.close()
        os.close(self._wake)

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            for key, mask in self._selector.select(self._patience()):
                if key.data is None:
                    os.eventfd_read(self._wake)
                    continue
                readable, writable = key.data
                if mask & selectors.EVENT_WRITE and writable is not None:
                    writable()
                if mask & selectors.EVENT_READ:
                    readable()
            self._run_timers()
            while self._commands:
                self._commands.popleft()()

    def _patience(self) -> float | None:
        if self._commands:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, min(when for when, _ in self._timers) - time.monotonic())

    def _run_timers(self) -> None:
        now = time.monotonic()
        due = [command for when, command in self._timers if when <= now]
        if due:
            self._timers = [(when, command) for when, command in self._timers if when > now]
        for command in due:
            command()
