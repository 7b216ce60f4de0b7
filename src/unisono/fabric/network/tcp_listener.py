"""The network side of a host: it listens, keeps strangers apart, and holds the sessions."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from unisono.errors import UserError
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Member, Traffic
from unisono.fabric.frames import GREETING, Greeting, Refusal, read
from unisono.fabric.local.links import Inbox
from unisono.fabric.local.reactor import Reactor
from unisono.fabric.network.auth import explain, is_tls_failure, tls_contexts
from unisono.fabric.network.buffer_pool import BufferPool
from unisono.fabric.network.endpoints import (
    SocketAddress,
    address_of,
    interface_of,
    route_to,
    tcp_place,
)
from unisono.fabric.network.frame_stream import FrameStream
from unisono.fabric.network.handshake import SHAKE_S, Handshake
from unisono.fabric.network.tcp_link import GIVE_UP_S, TcpLink
from unisono.fabric.network.tcp_receiver import TcpReceiver
from unisono.fabric.network.tcp_socket import TcpSocket

_BACKLOG = 512
_STRANGERS = 256
"""Connections that have not shown yet that they belong here; the oldest has to go."""
_TURN = 64
"""Connections that are accepted before the members have their turn."""
_LOOK_S = 0.1
_LOOK_MOST_S = 2.0
_BREATH_S = 0.1
_QUIET_S = 10.0
"""Seconds in which strangers are spoken of once."""
_NO = Refusal(no=1).model_dump_json().encode()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NetworkSettings:
    """How this process takes part in a run of several hosts."""

    credentials: str = field(repr=False)
    """The run's secret (see ``auth``); whoever has it is a member."""
    address: str
    """Of this machine: where to listen, and what the others are told."""
    port: int = 0
    """0: any that is free."""
    patience: float = 60.0
    """Seconds after which a member that cannot be reached, and is not dead, is not waited for."""

    @staticmethod
    def towards(coordinator: str, credentials: str, interface: str = "") -> NetworkSettings:
        """From what a process is told: the interface is the one on the way to the coordinator.

        ``interface`` is its name, or one of this machine's addresses.
        """
        address = address_of(interface) if interface else route_to(tcp_place(coordinator))
        return NetworkSettings(credentials, address)

    def describe(self) -> str:
        """What a person should know."""
        name = interface_of(self.address)
        return f"{self.address} ({name})" if name else self.address

    def wire(self, sock: socket.socket, *, listening: bool) -> TcpSocket:
        """A new connection, before its handshake."""
        accepting, calling = tls_contexts(self.credentials)
        return TcpSocket(sock, accepting if listening else calling, listening=listening)


class TcpListener:
    """Listens from ``open`` on. Reactor's thread only, but for ``link``."""

    def __init__(
        self,
        network: NetworkSettings,
        reactor: Reactor,
        greeted: Callable[[Address, Address], Inbox | None],
        lost: Callable[[Address, Address], None],
        unreachable: Callable[[Address, Member, str], bool],
    ) -> None:
        tls_contexts(network.credentials)  # what is wrong with them is said now
        self._network = network
        self._reactor = reactor
        self._greeted = greeted
        self._lost = lost
        self._unreachable = unreachable
        self._buffers = BufferPool()
        self._quiet_until = 0.0
        self._strangers: OrderedDict[Handshake | FrameStream, float] = OrderedDict()
        self._sessions: dict[tuple[Address, Address], TcpReceiver] = {}
        self._sweeping = False
        self._listener = _listen(network)
        self.place = SocketAddress(network.address, self._listener.getsockname()[1])

    def open(self) -> None:
        """Accepts connections from now on."""
        self._reactor.watch(self._listener, self._accept, None)

    def link(
        self,
        sender: Address,
        to: Member,
        changed: threading.Condition,
        traffic: Traffic,
        on_ready: Callable[[TcpLink], None],
        on_end: Callable[[TcpLink], None],
    ) -> TcpLink:
        """The sending end of a new session; any thread."""
        coordinator = to.address == COORDINATOR
        greeting = {"from": str(sender), "to": str(to.address), "at": str(self.place)}
        return TcpLink(
            tcp_place(to.endpoint),
            partial(self._network.wire, listening=False),
            self._reactor,
            self._buffers,
            greeting,
            changed,
            traffic,
            GIVE_UP_S if coordinator else self._network.patience,
            lambda reason: coordinator or self._unreachable(sender, to, reason),
            on_ready,
            on_end,
        )

    def drain(self, receiver: Address, senders: set[Address], *, end: bool) -> None:
        """Takes in what the senders' connections have brought; ends the sessions if asked."""
        self._accept()
        for stranger in list(self._strangers):
            stranger.read()
        for session in list(self._sessions.values()):
            if session.receiver == receiver and session.sender in senders:
                session.drain()
                if end:
                    self._end(session)

    def end_sessions_of(self, receiver: Address) -> None:
        """A node has closed."""
        for session in list(self._sessions.values()):
            if session.receiver == receiver:
                self._end(session)

    def shut(self) -> None:
        """Ends everything."""
        self._reactor.forget(self._listener)
        self._listener.close()
        for session in list(self._sessions.values()):
            self._end(session)
        for stranger in list(self._strangers):
            self._turn_away(stranger)

    # Strangers.

    def _accept(self) -> None:
        for _ in range(_TURN):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._take_a_breath()
                return
            self._let_in(sock)

    def _take_a_breath(self) -> None:
        """No descriptor is left: strangers go, and who waits outside waits a little longer."""
        for stranger in list(self._strangers):
            self._turn_away(stranger)
        self._reactor.forget(self._listener)
        self._reactor.call_later(_BREATH_S, self._open_again)

    def _open_again(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    def _let_in(self, sock: socket.socket) -> None:
        stranger = Handshake(
            sock,
            partial(self._network.wire, listening=True),
            self._reactor,
            lambda wire: self._authenticated(stranger, wire),
            lambda reason: self._failed(stranger, reason),
        )
        self._note(stranger)
        stranger.read()

    def _failed(self, stranger: Handshake, reason: Exception) -> None:
        self._forget(stranger)
        if is_tls_failure(reason) and time.monotonic() > self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_S
            _log.warning("refused a connection at %s: %s", self.place, explain(reason))

    def _note(self, stranger: Handshake | FrameStream) -> None:
        self._strangers[stranger] = time.monotonic() + SHAKE_S
        if len(self._strangers) > _STRANGERS:
            self._turn_away(next(iter(self._strangers)))
        if not self._sweeping:
            self._sweeping = True
            self._reactor.call_later(SHAKE_S, self._sweep)

    def _sweep(self) -> None:
        now = time.monotonic()
        for stranger, until in list(self._strangers.items()):
            if until <= now:
                self._turn_away(stranger)
        self._sweeping = bool(self._strangers)
        if self._sweeping:
            self._reactor.call_later(SHAKE_S / 4, self._sweep)

    def _forget(self, stranger: Handshake | FrameStream) -> None:
        self._strangers.pop(stranger, None)

    def _turn_away(self, stranger: Handshake | FrameStream) -> None:
        self._forget(stranger)
        if isinstance(stranger, FrameStream):
            stranger.end()
        else:
            stranger.fail(TimeoutError("too late, or too many"))

    def _authenticated(self, handshake: Handshake, wire: TcpSocket) -> None:
        """It belongs to the run; its first frame says who it is."""
        self._forget(handshake)
        stream = FrameStream(wire, self._reactor, self._buffers, lambda *_: None, lambda: None)
        stream.on_frame = lambda head, *_: self._greet(stream, read(head, GREETING))
        stream.on_end = lambda: self._forget(stream)
        self._note(stream)
        stream.start()

    # Sessions.

    def _greet(self, stream: FrameStream, greeting: Greeting) -> None:
        self._forget(stream)
        sender, receiver = greeting.sender, greeting.receiver
        session = self._sessions.get((sender, receiver))
        if session is None or session.session != greeting.session:
            inbox = self._greeted(sender, receiver)
            if inbox is None or not greeting.new:
                stream.on_end = lambda: None
                stream.write(_NO)
                stream.finish()
                return
            if session is not None:
                session.drain()
                self._end(session)
            session = TcpReceiver(greeting, self._buffers, inbox, self._watch_over, self._left)
            self._sessions[sender, receiver] = session
        session.attach(stream)

    def _end(self, session: TcpReceiver) -> None:
        session.end()
        key = session.sender, session.receiver
        if self._sessions.get(key) is session:
            del self._sessions[key]

    def _left(self, session: TcpReceiver) -> None:
        self._end(session)
        self._lost(session.receiver, session.sender)

    def _watch_over(self, session: TcpReceiver) -> None:
        """A connection broke. If its sender lives, it will call again.

        If its process has ended, nobody listens at its place any more, which the kernel there says
        at once. Whether a machine that says nothing lives is for the coordinator to tell.
        """
        key = session.sender, session.receiver

        def waits() -> bool:
            return self._sessions.get(key) is session and session.stream is None

        def look(pause: float) -> None:
            if waits():
                _Look(
                    SocketAddress.parse(session.at),
                    self._reactor,
                    lambda nobody: seen(nobody, pause),
                )

        def seen(nobody: bool, pause: float) -> None:
            if nobody and waits():
                self._left(session)
            else:
                later = min(2 * pause, _LOOK_MOST_S)
                self._reactor.call_later(pause, lambda: look(later))

        look(_LOOK_S)


class _Look:
    """Whether somebody listens at a place."""

    def __init__(
        self, place: SocketAddress, reactor: Reactor, then: Callable[[bool], None]
    ) -> None:
        self._reactor = reactor
        self._then = then
        self._over = False
        self._sock = socket.socket(place.family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        code = self._sock.connect_ex((place.address, place.port))
        if code == errno.EINPROGRESS:
            reactor.watch(self._sock, self._seen, self._seen)
            reactor.call_later(SHAKE_S, lambda: self._end(False))
        else:
            self._end(code == errno.ECONNREFUSED)

    def _seen(self) -> None:
        if not self._over:
            code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._end(code == errno.ECONNREFUSED)

    def _end(self, nobody: bool) -> None:
        if not self._over:
            self._over = True
            self._reactor.forget(self._sock)
            self._sock.close()
            self._then(nobody)


def _listen(network: NetworkSettings) -> socket.socket:
    place = SocketAddress(network.address, network.port)
    listener = socket.socket(place.family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((place.address, place.port))
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen at {place} ({error.strerror})") from None
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
