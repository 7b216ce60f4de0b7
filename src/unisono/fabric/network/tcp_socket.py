"""A connection to another host: mutual TLS 1.3 over a TCP socket that never blocks."""

from __future__ import annotations

import socket
import ssl
import threading

from unisono.fabric.network.auth import MEMBER, PROTOCOL

_IDLE_S = 5
_PROBES = 3
SILENCE_S = 8
"""Seconds after which bytes that nobody acknowledges end a connection."""
_MANY = 128 * 1024
"""Bytes that are worth waking up for, where more are sure to come."""
_RECORD = 16 * 1024 + 512
_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TcpSocket:
    """Reads and writes what is possible now; ``None``: nothing is, try again later.

    Raises:
        OSError: the connection has ended already.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, listening: bool) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
        self.sock = context.wrap_socket(
            sock,
            server_side=listening,
            do_handshake_on_connect=False,
            server_hostname=None if listening else MEMBER,
        )
        self.error: OSError | None = None
        """What has ended the connection, if it was not the other side."""
        self._awaited = 1
        # OpenSSL does not read and write at once on a connection.
        self._turn = threading.Lock()

    def handshake(self) -> bool:
        """Goes on with the handshake; whether it is over. Raises ``OSError`` if it fails."""
        try:
            self.sock.do_handshake()
        except _LATER:
            return False
        if self.sock.selected_alpn_protocol() != PROTOCOL:
            raise OSError("it runs another version of Unisono")
        return True

    def receive_into(self, room: memoryview) -> int | None:
        """How many bytes came; 0: the end."""
        try:
            with self._turn:
                return self.sock.recv_into(room)
        except _LATER:
            return None
        except OSError as error:
            self.error = error
            return 0

    def expect(self, count: int) -> None:
        """So many bytes are sure to come: the socket is readable when there are many of them.

        On a slow link every packet would wake the process otherwise, a thousand times a second.
        TLS may have taken a record and a part of one off the socket already.
        """
        awaited = max(1, min(count - 2 * _RECORD, _MANY))
        if awaited != self._awaited:
            self._awaited = awaited
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)

    def send(self, data: memoryview) -> int | None:
        """How many bytes went; an error is found by reading."""
        try:
            with self._turn:
                return self.sock.send(data)
        except _LATER:
            return None
        except OSError:
            return len(data)

    def close(self) -> None:
        self.sock.close()
