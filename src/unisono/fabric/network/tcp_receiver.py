"""The receiving end of a session between hosts; ``tcp_link`` has the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from unisono.fabric.api import Message
from unisono.fabric.frames import (
    MESSAGE,
    Data,
    Goodbye,
    Greeting,
    ProtocolError,
    Receipt,
    dtype_of,
    read,
)
from unisono.fabric.local.credits import CreditReturns
from unisono.fabric.local.links import Inbox
from unisono.fabric.local.shared_memory import as_vector
from unisono.fabric.network.buffer_pool import BufferPool
from unisono.fabric.network.frame_stream import FrameStream
from unisono.fabric.vector import TensorVector

_UNSAID = 16
"""Messages without a vector that have come and are not acknowledged yet."""


class TcpReceiver:
    """The receiving end of a session. It outlives its connections.

    Reactor's thread only, except that messages are released in any thread.
    """

    def __init__(
        self,
        greeting: Greeting,
        buffers: BufferPool,
        inbox: Inbox,
        on_break: Callable[[TcpReceiver], None],
        on_end: Callable[[TcpReceiver], None],
    ) -> None:
        self.sender = greeting.sender
        self.receiver = greeting.receiver
        self.session = greeting.session
        self.at = greeting.at
        self.stream: FrameStream | None = None
        self._buffers = buffers
        self._inbox = inbox
        self._on_break = on_break
        self._on_end = on_end
        self._tally = CreditReturns()
        self._lock = threading.Lock()
        self._consumed: dict[str, int] = {}
        self._received = 0
        self._unsaid = 0
        self._over = False

    def attach(self, stream: FrameStream) -> None:
        """Goes on over a new connection; what came over the old one counts."""
        if self.stream is not None:
            old = self.stream
            old.read()
            self.stream = None
            old.on_end = lambda: None
            old.end()
        if self._over:
            stream.finish()
            return
        stream.peer = self.sender.name
        stream.payload_limit = lambda: self._inbox.vector_limit
        stream.on_frame = self._frame
        stream.on_end = self._broken
        self.stream = stream
        with self._lock:
            self._say(self._consumed)

    def drain(self) -> None:
        """Takes in all that has come so far."""
        if self.stream is not None:
            self.stream.read()

    def end(self) -> None:
        self._over = True
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.on_end = lambda: None
            stream.end()

    def _broken(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None and isinstance(stream.failure, ProtocolError):
            self._over = True
            self._on_end(self)
        elif not self._over:
            self._on_break(self)

    def _frame(self, head: bytes, memory: torch.Tensor | None, size: int) -> None:
        message = read(head, MESSAGE)
        if isinstance(message, Goodbye):
            self._leave()
            return
        if message.n != self._received:
            raise ProtocolError(f"message {message.n} instead of {self._received}")
        vector = _vector(message, memory, size)
        port, count = message.p, self._tally.arrive(message.p)
        self._received += 1
        with self._lock:
            self._unsaid += 1
            self._credit(port, count)
            if self._unsaid and (memory is not None or self._unsaid >= _UNSAID):
                self._say({})
        has_vector = vector is not None
        release = lambda: self._release(port, memory, has_vector)  # noqa: E731
        self._inbox.deliver(port, Message(self.sender, message.b, vector, release))

    def _release(self, port: str, memory: torch.Tensor | None, at_once: bool) -> None:
        count = self._tally.consume(port, at_once=at_once)
        if memory is not None:
            self._buffers.give(memory)
        with self._lock:
            self._credit(port, count)

    def _credit(self, port: str, count: int) -> None:
        if count:
            self._consumed[port] = self._consumed.get(port, 0) + count
            self._say({port: self._consumed[port]})

    def _say(self, consumed: dict[str, int]) -> None:
        """Tells what came and what was consumed. Under the lock."""
        self._unsaid = 0
        stream = self.stream
        if stream is not None:
            stream.write(Receipt(r=self._received, c=consumed).model_dump_json().encode())

    def _leave(self) -> None:
        """The sender has said goodbye; it is told that everything came."""
        self._over = True
        with self._lock:
            self._say({})
        stream, self.stream = self.stream, None
        assert stream is not None
        stream.on_end = lambda: None
        stream.finish()
        self._on_end(self)


def _vector(message: Data, memory: torch.Tensor | None, size: int) -> TensorVector | None:
    """The vector in the payload, which must be as long as the message says."""
    count, dtype = (0, torch.uint8) if message.v is None else (message.v[0], dtype_of(message.v[1]))
    if count * dtype.itemsize != size:
        raise ProtocolError(f"a payload of {size} bytes for {count} numbers of {dtype}")
    if memory is not None:
        return as_vector(memory, count, dtype)
    return None if message.v is None else TensorVector(torch.empty(0, dtype=dtype))
