"""The sending end of a session, over TCP connections that may break and be made anew.

Every message of a session has a number. The sender keeps a message until the receiver has said that
it has it; when a connection breaks between two that live, the sender calls again, is told how many
came, and sends the rest. So a broken connection loses and repeats nothing. Credit travels as the
number of all messages of a port that were ever consumed, which can be said twice.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from unisono.fabric.address import Address
from unisono.fabric.api import Traffic
from unisono.fabric.frames import ANSWER, Goodbye, ProtocolError, Refusal, read
from unisono.fabric.local.credits import SendCredits
from unisono.fabric.local.reactor import Reactor
from unisono.fabric.local.shared_memory import as_vector
from unisono.fabric.network.auth import explain, is_tls_failure
from unisono.fabric.network.buffer_pool import BufferPool, as_bytes
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.frame_stream import FrameStream
from unisono.fabric.network.handshake import ConnectionRefused, Dialer, MakeWire
from unisono.fabric.network.tcp_socket import TcpSocket
from unisono.fabric.vector import TensorVector

_AGAIN_S = 0.05
_AGAIN_MOST_S = 1.0
GIVE_UP_S = 5.0
"""Seconds after which a broken session to the coordinator is over; see ``patience``."""
_BYE = Goodbye(bye=1).model_dump_json().encode()
_log = logging.getLogger(__name__)


@dataclass
class _Kept:
    """A message that the receiver has not said to have."""

    number: int
    head: bytes
    memory: torch.Tensor | None = None
    payload: memoryview | None = None


class TcpLink:
    """The sending end of a session.

    ``on_ready`` is called when the receiver has taken the first greeting, ``on_end`` once: when
    nobody listens there any more, the receiver wants no more of it, or it was closed; and when the
    receiver could not be reached for ``patience`` seconds and ``gives_up``, which is told why, says
    so. Who speaks to
    the coordinator sends again what was lost, and must know when nobody hears it. Whether another
    member is dead is for the coordinator to say, but it may be reached by all but one.
    """

    def __init__(
        self,
        place: SocketAddress,
        make_wire: MakeWire,
        reactor: Reactor,
        buffers: BufferPool,
        greeting: dict[str, str],
        changed: threading.Condition,
        traffic: Traffic,
        patience: float,
        gives_up: Callable[[str], bool],
        on_ready: Callable[[TcpLink], None],
        on_end: Callable[[TcpLink], None],
    ) -> None:
        self._place = place
        self._make_wire = make_wire
        self._reactor = reactor
        self._buffers = buffers
        self._greeting = {**greeting, "session": secrets.token_hex(16)}
        self._peer = Address.parse(greeting["to"]).name
        self._changed = changed
        self._traffic = traffic
        self._patience = patience
        self._gives_up = gives_up
        self._broken_since: float | None = None
        self._trouble = ""
        self._carrying = 0
        self._on_ready = on_ready
        self._on_end = on_end
        self._credits = SendCredits(changed)
        self._credited: dict[str, int] = {}
        self._order = threading.Lock()
        self._kept: deque[_Kept] = deque()
        self._next = 0
        self._stream: FrameStream | None = None
        self._dialing: Dialer | None = None
        self._again_s = _AGAIN_S
        self._established = False
        self._closing = False
        self._over = False
        self._closed = threading.Event()
        self._current: FrameStream | None = None
        """The connection, also before the receiver has taken the greeting."""
        reactor.call(self._dial)

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        """Sends a copy of the vector.

        Who may wait also waits for the first connection: what was sent is then in the hands of the
        kernel, as far as that has room, and a sender that is killed has said it.
        """
        if check is not None:
            self._wait_until_established(check)
        self._credits.take(port, check)
        kept = _Kept(0, b"")
        place = b""
        if vector is not None:
            kind = str(vector.tensor.dtype).removeprefix("torch.")
            place = b',"v":' + json.dumps([len(vector), kind]).encode()
            if len(vector):
                kept.memory = self._buffers.take(vector.nbytes)
                as_vector(kept.memory, len(vector), vector.tensor.dtype).assign(vector)
                kept.payload = as_bytes(kept.memory, vector.nbytes)
        with self._order:
            if self._over:
                return
            kept.number = self._next
            self._next += 1
            number = str(kept.number).encode()
            name = json.dumps(port).encode()
            kept.head = b'{"n":' + number + b',"p":' + name + place + b',"b":' + data + b"}"
            self._kept.append(kept)
            self._carry(kept)
            if self._stream is not None:
                self._stream.write(kept.head, kept.payload)

    def _carry(self, kept: _Kept) -> None:
        """A vector is on its way. Under the order's lock."""
        if kept.memory is not None:
            if self._carrying == 0:
                self._traffic.carrying_since = time.monotonic()
            self._carrying += 1

    def drop(self) -> None:
        self._reactor.call(self._end)

    def close(self) -> None:
        """Ends the session after what was sent, which the receiver has then."""
        self._reactor.call(self._close)

    def join(self, patience: float) -> None:
        if not self._closed.wait(patience):
            self._reactor.run(self._end)

    def _wait_until_established(self, check: Callable[[], None]) -> None:
        with self._changed:
            while not (self._established or self._over):
                check()
                self._changed.wait()

    # The reactor's thread.

    def _dial(self) -> None:
        if not self._over:
            self._dialing = Dialer(
                self._place, self._reactor, self._make_wire, self._connected, self._failed
            )

    def _failed(self, reason: Exception) -> None:
        self._dialing = None
        if isinstance(reason, ConnectionRefused):
            self._end()
        else:
            self._call_again(reason)

    def _call_again(self, reason: Exception | None) -> None:
        self._note(reason)
        now = time.monotonic()
        self._broken_since = now if self._broken_since is None else self._broken_since
        if now - self._broken_since > self._patience:
            self._broken_since = now
            if self._gives_up(self._trouble):
                self._end()
        if not self._over:
            self._reactor.call_later(self._again_s, self._dial)
            self._again_s = min(2 * self._again_s, _AGAIN_MOST_S)

    def _note(self, reason: Exception | None) -> None:
        """Says once what keeps the two apart, if it will not pass by itself."""
        trouble = "it ended the connection" if reason is None else explain(reason)
        if is_tls_failure(reason) and trouble != self._trouble:
            _log.warning("cannot connect to %s at %s: %s", self._peer, self._place, trouble)
        self._trouble = trouble

    def _connected(self, wire: TcpSocket) -> None:
        self._dialing = None
        stream = FrameStream(wire, self._reactor, self._buffers, lambda *_: None, lambda: None)
        stream.peer = self._peer
        stream.on_frame = lambda head, *_: self._frame(stream, head)
        stream.on_end = lambda: self._broken(stream)
        self._current = stream
        stream.start()
        stream.write(json.dumps({**self._greeting, "new": not self._established}).encode())

    def _frame(self, stream: FrameStream, head: bytes) -> None:
        answer = read(head, ANSWER)
        if isinstance(answer, Refusal):
            self._end()
            return
        self._take_credit(answer.c)
        with self._order:
            if answer.r > self._next:
                raise ProtocolError(f"it has {answer.r} messages, and {self._next} were sent")
            while self._kept and self._kept[0].number < answer.r:
                self._let_go(self._kept.popleft())
            if self._stream is None:
                for kept in self._kept:
                    stream.write(kept.head, kept.payload)
                self._stream = stream
                self._again_s, self._broken_since = _AGAIN_S, None
                if self._closing:
                    stream.write(_BYE)
        if not self._established:
            self._establish()

    def _establish(self) -> None:
        with self._changed:
            self._established = True
            self._changed.notify_all()
        self._on_ready(self)

    def _take_credit(self, totals: dict[str, int]) -> None:
        for port, total in totals.items():
            count = total - self._credited.get(port, 0)
            if count > 0:
                self._credited[port] = total
                self._credits.give(port, count)

    def _let_go(self, kept: _Kept) -> None:
        """The receiver has the message, so no connection needs its bytes any more."""
        kept.payload = None
        if kept.memory is not None:
            self._buffers.give(kept.memory)
            self._carrying -= 1
            since = self._traffic.carrying_since
            if self._carrying == 0 and since is not None:
                self._traffic.seconds += time.monotonic() - since
                self._traffic.carrying_since = None

    def _broken(self, stream: FrameStream) -> None:
        self._current = None
        with self._order:
            if self._stream is stream:
                self._stream = None
        if self._over:
            return
        done = self._closing and self._established and not self._kept
        if done or isinstance(stream.failure, ProtocolError):
            self._end()
        else:
            self._call_again(stream.failure)

    def _close(self) -> None:
        self._closing = True
        with self._order:
            if self._stream is not None:
                self._stream.write(_BYE)
            unused = not (self._established or self._kept)
        if unused:
            self._end()

    def _end(self) -> None:
        with self._order:
            if self._over:
                return
            self._over = True
            self._kept.clear()
            self._stream = None
        if self._dialing is not None:
            self._dialing.stop()
        if self._current is not None:
            self._current.end()
        with self._changed:
            self._changed.notify_all()
        self._on_end(self)
        self._closed.set()
