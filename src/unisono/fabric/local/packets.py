"""Packets over a Unix socket: written from any thread, read by the reactor."""

from __future__ import annotations

import array
import errno
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from unisono.fabric.frames import ProtocolError
from unisono.fabric.local.reactor import Reactor

_LOST = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ECONNREFUSED)
_SEND_BUFFER = 512 * 1024
_log = logging.getLogger(__name__)
_ROOM_FOR_FDS = socket.CMSG_SPACE(4 * array.array("i").itemsize)


class PacketSocket:
    """A socket that keeps packet borders; what its buffer does not take waits here.

    A packet is bytes, and perhaps some descriptors, which are closed after ``on_packet``. That one
    raises ``ProtocolError`` for what it does not understand; this ends the connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        on_packet: Callable[[bytes, list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._sock = sock
        self._reactor = reactor
        self._on_packet = on_packet
        self._on_end = on_end
        self.peer = "a process"
        self._lock = threading.Lock()
        self._backlog: deque[tuple[bytes, list[int]]] = deque()
        self._finishing = False
        self._ended = False

    def start(self) -> None:
        """Begins to read; reactor's thread only."""
        self._reactor.watch(self._sock, self.read, None)

    def write(self, data: bytes, fds: list[int]) -> None:
        """Sends a packet, or leaves it to the reactor when the socket's buffer is full."""
        with self._lock:
            if self._ended:
                return
            if self._backlog or not self._try(data, fds):
                self._backlog.append((data, fds))
                if len(self._backlog) == 1:
                    self._reactor.call(self._want_write)

    def read(self) -> None:
        """Takes in everything that is there; reactor's thread only."""
        scratch = self._reactor.scratch
        while not self._ended:
            try:
                size, extra, _, _ = self._sock.recvmsg_into(
                    [scratch], _ROOM_FOR_FDS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                # Told before the data when the peer died with unread packets; the data follow.
                continue
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                size = 0
            if size == 0:
                self.end()
                return
            self._take(bytes(scratch[:size]), _descriptors(extra))

    def _take(self, data: bytes, fds: list[int]) -> None:
        try:
            self._on_packet(data, fds)
        except ProtocolError as error:
            _log.warning("session with %s ended, a frame is malformed: %s", self.peer, error)
            self.end()
        finally:
            for fd in fds:
                os.close(fd)

    def finish(self) -> None:
        """Ends when everything is written; reactor's thread only."""
        self._finishing = True
        if not self._backlog:
            self.end()

    def end(self) -> None:
        """Closes the socket and says so, once; reactor's thread only."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._backlog.clear()
        self._reactor.forget(self._sock)
        self._sock.close()
        self._on_end()

    def _try(self, data: bytes, fds: list[int]) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _LOST:
                raise
        return True

    def _want_write(self) -> None:
        if not self._ended:
            self._reactor.watch(self._sock, self.read, self._flush)

    def _flush(self) -> None:
        with self._lock:
            while self._backlog and self._try(*self._backlog[0]):
                self._backlog.popleft()
            empty = not self._backlog
        if empty and self._finishing:
            self.end()
        elif empty and not self._ended:
            self._reactor.watch(self._sock, self.read, None)


def _descriptors(extra: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
