"""The one thread of a process that waits on its sockets."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

_SCRATCH = 256 * 1024


class Reactor:
    """Runs callbacks when sockets are readable or writable, commands of other threads, and timers.

    Everything that reads a socket happens in this thread, so that what a peer sent before it died
    can be read to its end before its death is told. An exception in a callback goes to
    ``on_error``, and the thread goes on: without it nobody would ever be woken again. ``scratch``
    is memory for what is read.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self.scratch = bytearray(_SCRATCH)
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._commands: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._open = threading.Lock()
        self._stopping = False
        self.stopped = False
        """Whether commands are refused; those that were accepted are run."""
        self._thread = threading.Thread(target=self._run, name="unisono-io", daemon=True)
        self._thread.start()
        _living.add(self)

    def call(self, command: Callable[[], None]) -> bool:
        """Runs ``command`` in the reactor's thread, soon; False: it has stopped."""
        with self._open:
            if self.stopped:
                return False
            self._commands.append(command)
            os.eventfd_write(self._wake, 1)
        return True

    def run(self, command: Callable[[], None]) -> bool:
        """Runs ``command`` in the reactor's thread and waits for it; False: it has stopped."""
        if threading.current_thread() is self._thread:
            command()
            return True
        done = threading.Event()

        def work() -> None:
            try:
                command()
            finally:
                done.set()

        if not self.call(work):
            return False
        done.wait()
        return True

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
        with suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def stop(self) -> None:
        """Ends the thread after the commands that were given before; later ones are refused."""
        self.call(self._stop)
        self._thread.join()

    def abandon(self) -> None:
        """In a forked child: the sockets are the parent's, and end when the parent ends them."""
        self.stopped = True
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        os.close(self._wake)

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._has_stopped():
            for key, mask in self._selector.select(self._patience()):
                if key.data is None:
                    os.eventfd_read(self._wake)
                    continue
                readable, writable = key.data
                if mask & selectors.EVENT_WRITE and writable is not None:
                    self._try(writable)
                if mask & selectors.EVENT_READ:
                    self._try(readable)
            self._run_timers()
            while self._commands:
                self._try(self._commands.popleft())

    def _has_stopped(self) -> bool:
        """Stops if it was told to and all commands are run; no command can come in between."""
        with self._open:
            if self._stopping and not self._commands:
                self.stopped = True
                self._selector.close()
                os.close(self._wake)
            return self.stopped

    def _try(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:
            self._on_error(error)

    def _patience(self) -> float | None:
        if self._commands:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, min(when for when, _ in self._timers) - time.monotonic())

    def _run_timers(self) -> None:
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        if due:
            self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, command in sorted(due, key=lambda timer: timer[0]):
            self._try(command)


_living: weakref.WeakSet[Reactor] = weakref.WeakSet()


def _abandon_all() -> None:
    for reactor in list(_living):
        if not reactor.stopped:
            reactor.abandon()


# A loader's forked workers would keep a dead learner's connections open for as long as they live.
os.register_at_fork(after_in_child=_abandon_all)
