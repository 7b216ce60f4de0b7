"""A TCP socket that never blocks, as the rest of the transport wants it."""

from __future__ import annotations

import socket

_IDLE_S = 5
_PROBES = 3
SILENCE_S = 8
"""Seconds after which bytes that nobody acknowledges end a connection."""
_MANY = 128 * 1024
"""Bytes that are worth waking up for, where more are sure to come."""


class TcpSocket:
    """Reads and writes what is possible now; ``None``: nothing is, try again later."""

    private = False
    """Whether nobody else can read or change what travels."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
        self.sock = sock
        self._awaited = 1

    def shake(self) -> bool:
        """Prepares the channel; whether it is ready."""
        return True

    @property
    def binding(self) -> bytes:
        """What binds proofs to this channel."""
        return b""

    def receive_into(self, room: memoryview) -> int | None:
        """How many bytes came; 0: the end."""
        try:
            return self.sock.recv_into(room)
        except BlockingIOError:
            return None
        except OSError:
            return 0

    def expect(self, count: int) -> None:
        """So many bytes are sure to come: the socket is readable when there are many of them.

        On a slow link every packet would wake the process otherwise, a thousand times a second.
        """
        awaited = max(1, min(count, _MANY))
        if awaited != self._awaited:
            self._awaited = awaited
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)

    def send(self, data: memoryview) -> int | None:
        """How many bytes went; an error is found by reading."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return None
        except OSError:
            return len(data)

    def close(self) -> None:
        """Closes."""
        self.sock.close()
