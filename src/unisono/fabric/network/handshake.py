"""The beginning of a connection: both sides authenticate by TLS, within a time limit."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from unisono.fabric.local.reactor import Reactor
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.tcp_socket import TcpSocket

SHAKE_S = 10.0
"""Seconds that the other side has."""

MakeWire = Callable[[socket.socket], TcpSocket]
OnOpen = Callable[[TcpSocket], None]
OnFail = Callable[[Exception], None]


class ConnectionRefused(Exception):  # noqa: N818
    """Nobody listens there."""


class Handshake:
    """Takes a connected socket through TLS' handshake. Reactor's thread only.

    One of ``on_open`` and ``on_fail`` is called, once.
    """

    def __init__(
        self,
        sock: socket.socket,
        make_wire: MakeWire,
        reactor: Reactor,
        on_open: OnOpen,
        on_fail: OnFail,
    ) -> None:
        self._sock = sock
        self._make_wire = make_wire
        self._reactor = reactor
        self._on_open = on_open
        self._on_fail = on_fail
        self._wire: TcpSocket | None = None
        self._over = False

    def read(self) -> None:
        """Goes as far as it can."""
        if self._over:
            return
        try:
            if self._wire is None:
                self._wire = self._make_wire(self._sock)
                self._reactor.watch(self._wire.sock, self.read, None)
            ready = self._wire.handshake()
        except OSError as error:
            self.fail(error)
            return
        if ready:
            self._over = True
            self._on_open(self._wire)

    def fail(self, reason: Exception) -> None:
        """Ends it."""
        if self._over:
            return
        self._over = True
        if self._wire is not None:
            self._reactor.forget(self._wire.sock)
            self._wire.close()
        self._sock.close()
        self._on_fail(reason)


class Dialer:
    """Connects and shakes hands, or fails in the end. Reactor's thread only."""

    def __init__(
        self,
        place: SocketAddress,
        reactor: Reactor,
        make_wire: MakeWire,
        on_open: OnOpen,
        on_fail: OnFail,
    ) -> None:
        self._reactor = reactor
        self._on_fail = on_fail
        self._sock = socket.socket(place.family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._handshake = Handshake(
            self._sock, make_wire, reactor, on_open, lambda reason: self._on_fail(reason)
        )
        code = self._sock.connect_ex((place.address, place.port))
        if code in (0, errno.EINPROGRESS):
            reactor.watch(self._sock, self._connected, self._connected)
            reactor.call_later(SHAKE_S, self._late)
        else:
            reactor.call(lambda: self._fail(_reason(code)))

    def stop(self) -> None:
        """Gives it up, without a word."""
        self._on_fail = lambda reason: None
        self._fail(TimeoutError())

    def _connected(self) -> None:
        if self._sock.fileno() < 0:
            return  # told once that it can be written, and once that it can be read
        self._reactor.forget(self._sock)
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(_reason(code))
        else:
            self._handshake.read()

    def _late(self) -> None:
        self._fail(TimeoutError("it did not answer in time"))

    def _fail(self, reason: Exception) -> None:
        self._reactor.forget(self._sock)
        self._handshake.fail(reason)


def _reason(code: int) -> Exception:
    return ConnectionRefused() if code == errno.ECONNREFUSED else OSError(code, "cannot be reached")
