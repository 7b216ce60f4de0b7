"""The receiving end of a session between hosts; see ``remote`` for the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import torch

from unisono.fabric.address import Address
from unisono.fabric.api import Message
from unisono.fabric.local.credits import CreditReturns
from unisono.fabric.local.shared_memory import as_vector
from unisono.fabric.network.auth import Forged
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
        sender: Address,
        receiver: Address,
        session: str,
        at: str,
        buffers: BufferPool,
        deliver: Callable[[str, Message], None],
        on_break: Callable[[TcpReceiver], None],
        on_bye: Callable[[TcpReceiver], None],
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.session = session
        self.at = at
        self.stream: FrameStream | None = None
        self._buffers = buffers
        self._deliver = deliver
        self._on_break = on_break
        self._on_bye = on_bye
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
        """Ends the session."""
        self._over = True
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.on_end = lambda: None
            stream.end()

    def _broken(self) -> None:
        self.stream = None
        if not self._over:
            self._on_break(self)

    def _frame(self, head: bytes, memory: torch.Tensor | None) -> None:
        packet = json.loads(head)
        if "bye" in packet:
            self._leave()
            return
        if packet["n"] != self._received:
            raise Forged("a message out of its order")
        self._received += 1
        port, vector = packet["p"], None
        if "v" in packet:
            count, kind = packet["v"]
            dtype = getattr(torch, kind)
            if memory is None:
                vector = TensorVector(torch.empty(0, dtype=dtype))
            else:
                vector = as_vector(memory, count, dtype)
        count = self._tally.arrive(port)
        with self._lock:
            self._unsaid += 1
            self._credit(port, count)
            if self._unsaid and (memory is not None or self._unsaid >= _UNSAID):
                self._say({})
        has_vector = vector is not None
        release = lambda: self._release(port, memory, has_vector)  # noqa: E731
        self._deliver(port, Message(self.sender, packet["b"], vector, release))

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
            packet = {"r": self._received, "c": consumed}
            stream.write(json.dumps(packet, separators=(",", ":")).encode())

    def _leave(self) -> None:
        """The sender has said goodbye; it is told that everything came."""
        self._over = True
        with self._lock:
            self._say({})
        stream, self.stream = self.stream, None
        assert stream is not None
        stream.on_end = lambda: None
        stream.finish()
        self._on_bye(self)
