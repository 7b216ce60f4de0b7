"""The beginning of a connection: both sides show that they belong to the run (see ``seal``)."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable

from unisono.fabric.local.reactor import Reactor
from unisono.fabric.network.auth import NONCE, PROOF, Forged, Proofs, Seal
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.tcp_socket import TcpSocket

MAGIC = b"unisono1"
SHAKE_S = 10.0
"""Seconds that the other side has."""

OnOpen = Callable[[TcpSocket, "tuple[Seal, Seal]"], None]


class ConnectionRefused(Exception):  # noqa: N818
    """Nobody listens there."""


class Handshake:
    """What both sides do: exact numbers of bytes, and no more memory than these.

    ``on_open`` gets the connection and the seals (outgoing, incoming); ``on_fail`` the reason.
    Reactor's thread only.
    """

    def __init__(
        self,
        wire: TcpSocket,
        reactor: Reactor,
        token: bytes,
        on_open: OnOpen,
        on_fail: Callable[[Exception], None],
    ) -> None:
        self._wire = wire
        self._reactor = reactor
        self._token = token
        self._on_open = on_open
        self._on_fail = on_fail
        self._nonce = secrets.token_bytes(NONCE)
        self._wanted = 0
        self._got = b""
        self._then: Callable[[bytes], None] = lambda data: None
        self._over = False

    def read(self) -> None:
        """Takes in what is there, and goes on with it."""
        while not self._over:
            room = bytearray(self._wanted - len(self._got))
            count = self._wire.receive_into(memoryview(room))
            if count is None:
                return
            if count == 0:
                self.fail(ConnectionResetError("it ended the connection"))
                return
            self._got += room[:count]
            if len(self._got) == self._wanted:
                got, self._got = self._got, b""
                try:
                    self._then(got)
                except Forged as forged:
                    self.fail(forged)

    def fail(self, reason: Exception) -> None:
        """Ends it."""
        if not self._over:
            self._over = True
            self._reactor.forget(self._wire.sock)
            self._wire.close()
            self._on_fail(reason)

    def start(self) -> None:
        """Begins; again and again until the channel below is ready."""
        if self._over:
            return
        try:
            ready = self._wire.shake()
        except OSError as error:
            self.fail(error)
            return
        if ready:
            self._begin()
        else:
            self._reactor.watch(self._wire.sock, self.start, None)

    def _begin(self) -> None:
        raise NotImplementedError

    def _want(self, count: int, then: Callable[[bytes], None]) -> None:
        self._wanted, self._then = count, then
        self._reactor.watch(self._wire.sock, self.read, None)

    def _say(self, data: bytes) -> None:
        """A few bytes always have room in a new connection."""
        self._wire.send(memoryview(data))

    def _open(self, proofs: Proofs, mine: str, theirs: str) -> None:
        self._over = True
        private = self._wire.private
        seals = proofs.seal(mine, private=private), proofs.seal(theirs, private=private)
        self._on_open(self._wire, seals)


class ServerHandshake(Handshake):
    """The side that listens: asks first, and answers nobody who does not know the token."""

    def _begin(self) -> None:
        self._say(MAGIC + self._nonce)
        self._want(NONCE + PROOF, self._check)

    def _check(self, data: bytes) -> None:
        proofs = Proofs(self._token, self._nonce, data[:NONCE], self._wire.binding)
        proofs.check("call", data[NONCE:])
        self._say(proofs.proof("answer"))
        self._open(proofs, "listening", "calling")


class ClientHandshake(Handshake):
    """The side that calls."""

    def _begin(self) -> None:
        self._want(len(MAGIC) + NONCE, self._prove)

    def _prove(self, data: bytes) -> None:
        if not data.startswith(MAGIC):
            raise Forged("it is not a process of Unisono, or of another version")
        proofs = Proofs(self._token, data[len(MAGIC) :], self._nonce, self._wire.binding)
        self._say(self._nonce + proofs.proof("call"))

        def check(shown: bytes) -> None:
            proofs.check("answer", shown)
            self._open(proofs, "calling", "listening")

        self._want(PROOF, check)


class Dialer:
    """Connects and shakes hands, or fails in the end. Reactor's thread only."""

    def __init__(
        self,
        place: SocketAddress,
        reactor: Reactor,
        token: bytes,
        make_wire: Callable[[socket.socket], TcpSocket],
        on_open: OnOpen,
        on_fail: Callable[[Exception], None],
    ) -> None:
        self._reactor = reactor
        self._token = token
        self._make_wire = make_wire
        self._on_open = on_open
        self._on_fail = on_fail
        self._shake: ClientHandshake | None = None
        self._over = False
        self._sock = socket.socket(place.family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
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
        if self._over or self._shake is not None:
            return
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(_reason(code))
            return
        wire = self._make_wire(self._sock)
        self._shake = ClientHandshake(wire, self._reactor, self._token, self._opened, self._fail)
        self._shake.start()

    def _opened(self, wire: TcpSocket, seals: tuple[Seal, Seal]) -> None:
        self._over = True
        self._on_open(wire, seals)

    def _late(self) -> None:
        self._fail(TimeoutError("it did not answer in time"))

    def _fail(self, reason: Exception) -> None:
        if self._over:
            return
        self._over = True
        if self._shake is not None:
            self._shake.fail(reason)
        else:
            self._reactor.forget(self._sock)
            self._sock.close()
        self._on_fail(reason)


def _reason(code: int) -> Exception:
    return ConnectionRefused() if code == errno.ECONNREFUSED else OSError(code, "cannot be reached")
