"""Frames over an authenticated connection: written from any thread, read by the reactor.

A frame is a head (JSON) and perhaps a payload (a vector's bytes):

    length of head, u32 | length of payload, u64 | head | tag
    piece of the payload | tag                              (as often as needed)

little-endian; each tag is for all bytes since the one before (see ``seal``).
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator

import torch

from unisono.fabric.api import BODY_LIMIT
from unisono.fabric.local.reactor import Reactor
from unisono.fabric.network.auth import Forged, Seal
from unisono.fabric.network.buffer_pool import BufferPool, as_bytes
from unisono.fabric.network.tcp_socket import TcpSocket

PIECE = 1024 * 1024
"""Bytes of a payload that travel under one tag."""
HEAD_LIMIT = BODY_LIMIT + 4096
_LENGTHS = struct.Struct("<IQ")
_ROOM = _LENGTHS.size + HEAD_LIMIT + Seal.size
_SHORT = 32 * 1024
_TURN = 16 * 1024 * 1024
"""Bytes that one connection may bring in before the others have their turn."""

OnFrame = Callable[[bytes, torch.Tensor | None], None]


class FrameStream:
    """One connection. ``on_frame`` owns the payload's memory; ``on_end`` is told once."""

    def __init__(
        self,
        wire: TcpSocket,
        reactor: Reactor,
        buffers: BufferPool,
        seals: tuple[Seal, Seal],
        on_frame: OnFrame,
        on_end: Callable[[], None],
    ) -> None:
        self._wire = wire
        self._reactor = reactor
        self._buffers = buffers
        self._out, self._in = seals
        self.on_frame = on_frame
        self.on_end = on_end
        self._lock = threading.Lock()
        self._backlog: deque[Iterator[memoryview]] = deque()
        self._chunk = memoryview(b"")
        self._finishing = False
        self._ended = False
        self._room = bytearray(_ROOM)
        self._start = self._stop = 0
        self._head = b""
        self._payload: memoryview | None = None
        self._memory: torch.Tensor | None = None
        self._filled = self._checked = 0

    def start(self) -> None:
        """Begins to read; reactor's thread only."""
        self._reactor.watch(self._wire.sock, self._readable, None)
        self._readable()

    def write(self, head: bytes, payload: memoryview | None = None) -> None:
        """Sends a frame, or leaves it to the reactor when the socket's buffer is full.

        The payload must not change until the other side has said that it has it.
        """
        with self._lock:
            if self._ended:
                return
            idle = not (self._backlog or self._chunk)
            self._backlog.append(self._chunks(head, payload))
            if idle and not self._push():
                self._reactor.call(self._want_write)

    def read(self) -> None:
        """Takes in everything that is there; reactor's thread only."""
        while not self._ended and self._take_in():
            pass

    def finish(self) -> None:
        """Ends when everything is written; reactor's thread only."""
        self._finishing = True
        if not (self._backlog or self._chunk):
            self.end()

    def end(self) -> None:
        """Closes the socket and says so, once; reactor's thread only."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._backlog.clear()
            self._chunk = memoryview(b"")
        self._reactor.forget(self._wire.sock)
        self._wire.close()
        self._payload = self._memory = None
        self.on_end()

    # Writing.

    def _chunks(self, head: bytes, payload: memoryview | None) -> Iterator[memoryview]:
        """The bytes of a frame; the tags are made when their turn comes."""
        size = 0 if payload is None else len(payload)
        frame = _LENGTHS.pack(len(head), size) + head
        start = frame + self._out.tag(frame)
        if payload is None:
            yield memoryview(start)
        elif size <= _SHORT:
            yield memoryview(start + payload + (self._out.tag(payload) if size else b""))
        else:
            yield memoryview(start)
            for place in range(0, size, PIECE):
                piece = payload[place : place + PIECE]
                tag = self._out.tag(piece)
                yield piece
                yield memoryview(tag)

    def _push(self) -> bool:
        """Writes as much as goes; whether that was all. Under the lock."""
        while True:
            while not self._chunk:
                if not self._backlog:
                    return True
                chunk = next(self._backlog[0], None)
                if chunk is None:
                    self._backlog.popleft()
                else:
                    self._chunk = chunk
            sent = self._wire.send(self._chunk)
            if sent is None:
                return False
            self._chunk = self._chunk[sent:]

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
        if payload is not None and self._filled < min(self._checked + PIECE, len(payload)):
            stop = min(self._checked + PIECE, len(payload))
            count = self._wire.receive_into(payload[self._filled : stop])
            direct = True
        else:
            self._make_room()
            count = self._wire.receive_into(memoryview(self._room)[self._stop :])
            direct = False
        if count is None:
            self._wire.expect(0 if payload is None else len(payload) - self._filled)
            return 0
        if count == 0:
            self.end()
            return 0
        if direct:
            self._filled += count
        else:
            self._stop += count
        try:
            while self._parse():
                pass
        except Forged:
            self.end()
        return count

    def _make_room(self) -> None:
        if self._start:
            rest = self._stop - self._start
            self._room[:rest] = self._room[self._start : self._stop]
            self._start, self._stop = 0, rest

    def _parse(self) -> bool:
        """Goes one step on with what was read; False: more is needed."""
        if self._ended:
            return False
        return self._parse_head() if self._payload is None else self._parse_piece()

    def _parse_head(self) -> bool:
        there = self._stop - self._start
        if there < _LENGTHS.size:
            return False
        length, size = _LENGTHS.unpack_from(self._room, self._start)
        if length > HEAD_LIMIT:
            raise Forged("a head that is too long")
        if there < _LENGTHS.size + length + self._in.size:
            return False
        frame = self._cut(_LENGTHS.size + length)
        self._in.check(frame, self._cut(self._in.size))
        self._head = frame[_LENGTHS.size :]
        if size == 0:
            self.on_frame(self._head, None)
        else:
            self._memory = self._buffers.take(size)
            self._payload = as_bytes(self._memory, size)
            self._filled = self._checked = 0
        return True

    def _parse_piece(self) -> bool:
        payload = self._payload
        assert payload is not None
        stop = min(self._checked + PIECE, len(payload))
        count = min(stop - self._filled, self._stop - self._start)
        payload[self._filled : self._filled + count] = self._room[self._start : self._start + count]
        self._filled += count
        self._start += count
        if self._filled < stop or self._stop - self._start < self._in.size:
            return False
        self._in.check(payload[self._checked : stop], self._cut(self._in.size))
        self._checked = stop
        if stop == len(payload):
            memory, self._memory, self._payload = self._memory, None, None
            self.on_frame(self._head, memory)
        return True

    def _cut(self, count: int) -> bytes:
        self._start += count
        return bytes(self._room[self._start - count : self._start])
