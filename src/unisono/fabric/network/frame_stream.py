"""Frames over an authenticated connection: written from any thread, read by the reactor.

A frame is a head (JSON) and perhaps a payload (a vector's bytes):

    length of head, u32 | length of payload, u64 | head | payload

little-endian.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable

import torch

from unisono.fabric.api import BODY_LIMIT
from unisono.fabric.frames import ProtocolError
from unisono.fabric.local.reactor import Reactor
from unisono.fabric.network.buffer_pool import BufferPool, as_bytes
from unisono.fabric.network.tcp_socket import TcpSocket

HEAD_LIMIT = BODY_LIMIT + 4096
LENGTHS = struct.Struct("<IQ")
_ROOM = LENGTHS.size + HEAD_LIMIT
_SHORT = 32 * 1024
_TURN = 16 * 1024 * 1024
"""Bytes that one connection may bring in before the others have their turn."""

OnFrame = Callable[[bytes, torch.Tensor | None, int], None]
"""Gets the head, the memory that begins with the payload, and the payload's length."""
_log = logging.getLogger(__name__)


class FrameStream:
    """One connection. ``on_frame`` owns the payload's memory; ``on_end`` is told once.

    ``on_frame`` raises ``ProtocolError`` for what it does not understand; this ends the connection,
    and so does a frame that is too long.
    """

    def __init__(
        self,
        wire: TcpSocket,
        reactor: Reactor,
        buffers: BufferPool,
        on_frame: OnFrame,
        on_end: Callable[[], None],
    ) -> None:
        self._wire = wire
        self._reactor = reactor
        self._buffers = buffers
        self.on_frame = on_frame
        self.on_end = on_end
        self.peer = "a member"
        self.payload_limit: Callable[[], int] = lambda: 0
        """Bytes of a payload; no memory is taken for more."""
        self.failure: Exception | None = None
        """What ended the connection, if it did not simply end."""
        self._lock = threading.Lock()
        self._backlog: deque[memoryview] = deque()
        self._finishing = False
        self._ended = False
        self._room = bytearray(_ROOM)
        self._start = self._stop = 0
        self._head = b""
        self._payload: memoryview | None = None
        self._memory: torch.Tensor | None = None
        self._filled = 0

    def start(self) -> None:
        """Begins to read; reactor's thread only."""
        self._reactor.watch(self._wire.sock, self._readable, None)
        self._readable()

    def write(self, head: bytes, payload: memoryview | None = None) -> None:
        """Sends a frame, or leaves it to the reactor when the socket's buffer is full.

        The payload must not change until the other side has said that it has it.
        """
        size = 0 if payload is None else len(payload)
        start = LENGTHS.pack(len(head), size) + head
        with self._lock:
            if self._ended:
                return
            idle = not self._backlog
            if payload is None:
                self._backlog.append(memoryview(start))
            elif size <= _SHORT:
                self._backlog.append(memoryview(start + payload))
            else:
                self._backlog += (memoryview(start), payload)
            if idle and not self._push():
                self._reactor.call(self._want_write)

    def read(self) -> None:
        """Takes in everything that is there; reactor's thread only."""
        while not self._ended and self._take_in():
            pass

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
        self._reactor.forget(self._wire.sock)
        self._wire.close()
        self._payload = self._memory = None
        self.on_end()

    # Writing.

    def _push(self) -> bool:
        """Writes as much as goes; whether that was all. Under the lock."""
        while self._backlog:
            sent = self._wire.send(self._backlog[0])
            if sent is None:
                return False
            rest = self._backlog[0][sent:]
            if rest:
                self._backlog[0] = rest
            else:
                self._backlog.popleft()
        return True

    def _want_write(self) -> None:
        if not self._ended:
            self._reactor.watch(self._wire.sock, self._readable, self._writable)

    def _writable(self) -> None:
        with self._lock:
            if self._ended:
                return
            done = self._push()
        if done and self._finishing:
            self.end()
        elif done:
            self._reactor.watch(self._wire.sock, self._readable, None)

    # Reading.

    def _readable(self) -> None:
        taken = 0
        while not self._ended and taken < _TURN:
            count = self._take_in()
            if not count:
                return
            taken += count
        if not self._ended:
            self._reactor.call(self._readable)  # What TLS has read already wakes nobody.

    def _take_in(self) -> int:
        """Reads once; how many bytes came."""
        payload = self._payload
        if payload is None:
            self._make_room()
            count = self._wire.receive_into(memoryview(self._room)[self._stop :])
        else:
            count = self._wire.receive_into(payload[self._filled :])
        if count is None:
            self._wire.expect(0 if payload is None else len(payload) - self._filled)
            return 0
        if count == 0:
            self.failure = self._wire.error
            self.end()
            return 0
        if payload is None:
            self._stop += count
        else:
            self._filled += count
        try:
            while not self._ended and self._parse():
                pass
        except ProtocolError as error:
            _log.warning("session with %s ended, a frame is malformed: %s", self.peer, error)
            self.failure = error
            self.end()
        return count

    def _make_room(self) -> None:
        if self._start:
            rest = self._stop - self._start
            self._room[:rest] = self._room[self._start : self._stop]
            self._start, self._stop = 0, rest

    def _parse(self) -> bool:
        """Goes one step on with what was read; False: more is needed."""
        return self._parse_head() if self._payload is None else self._parse_payload()

    def _parse_head(self) -> bool:
        there = self._stop - self._start
        if there < LENGTHS.size:
            return False
        length, size = LENGTHS.unpack_from(self._room, self._start)
        if length > HEAD_LIMIT:
            raise ProtocolError(f"a head of {length} bytes; at most {HEAD_LIMIT} are accepted")
        if size > (limit := self.payload_limit()):
            raise ProtocolError(f"a payload of {size} bytes; at most {limit} are accepted")
        if there < LENGTHS.size + length:
            return False
        first = self._start + LENGTHS.size
        self._start = first + length
        self._head = bytes(self._room[first : self._start])
        if size == 0:
            self.on_frame(self._head, None, 0)
        else:
            self._memory = self._buffers.take(size)
            self._payload = as_bytes(self._memory, size)
            self._filled = 0
        return True

    def _parse_payload(self) -> bool:
        payload = self._payload
        assert payload is not None
        count = min(len(payload) - self._filled, self._stop - self._start)
        payload[self._filled : self._filled + count] = self._room[self._start : self._start + count]
        self._filled += count
        self._start += count
        if self._filled < len(payload):
            return False
        memory, self._memory, self._payload = self._memory, None, None
        self.on_frame(self._head, memory, len(payload))
        return True
