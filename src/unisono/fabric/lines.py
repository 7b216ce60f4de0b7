"""Connections between nodes: inside a process, and over Unix sockets between processes."""

from __future__ import annotations

import array
import errno
import json
import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from unisono.fabric.address import Address
from unisono.fabric.base import CREDIT, Full, Message
from unisono.fabric.reactor import Reactor
from unisono.fabric.slots import Slot, Slots, as_vector
from unisono.fabric.vector import TensorVector

_PACKET = 256 * 1024
_LOST = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ECONNREFUSED)


class Line(Protocol):
    """The sending end of one sender's connection to one receiver."""

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        """Sends; ``check`` raises when waiting makes no sense any more; None: do not wait."""
        ...

    def wake(self) -> None:
        """Lets a sender that waits for credit run its check."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class Credits:
    """How many messages a sender may still send to each port of one receiver."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._changed = threading.Condition()

    def take(self, port: str, check: Callable[[], None] | None) -> None:
        """Uses one credit; waits for it as long as ``check`` does not raise."""
        with self._changed:
            while self._used.get(port, 0) >= CREDIT:
                if check is None:
                    raise Full
                check()
                self._changed.wait()
            self._used[port] = self._used.get(port, 0) + 1

    def give(self, port: str, count: int) -> None:
        """Takes credits back from the receiver."""
        with self._changed:
            self._used[port] -= count
            self._changed.notify_all()

    def wake(self) -> None:
        """Lets waiters check again."""
        with self._changed:
            self._changed.notify_all()


class LoopLine:
    """A line inside one process: the same credit, order and copies, and no socket."""

    def __init__(self, sender: Address, deliver: Callable[[str, Message], None]) -> None:
        self._sender = sender
        self._deliver = deliver
        self._credits = Credits()

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        """Puts a copy into the receiver's queue."""
        self._credits.take(port, check)
        copy = None if vector is None else vector.copy()
        message = Message(self._sender, json.loads(data), copy, lambda: self._credits.give(port, 1))
        self._deliver(port, message)

    def wake(self) -> None:
        """Lets a sender that waits for credit run its check."""
        self._credits.wake()

    def close(self) -> None:
        """Nothing to give back."""
        self._credits.wake()


class Packets:
    """A socket that keeps packet borders, written from any thread and read by the reactor."""

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        on_packet: Callable[[dict[str, Any], list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reactor = reactor
        self._on_packet = on_packet
        self._on_end = on_end
        self._lock = threading.Lock()
        self._backlog: deque[tuple[bytes, list[int]]] = deque()
        self._ended = False

    def start(self) -> None:
        """Begins to read; reactor's thread only."""
        self._reactor.watch(self._sock, self.read, None)

    def write(self, data: bytes, fds: list[int]) -> None:
        """Sends a packet, or leaves it to the reactor when the socket's buffer is full."""
        with self._lock:
            if self._ended:
                return
            if self._backlog or not self._try(data, fds):
                self._backlog.append((data, fds))
                if len(self._backlog) == 1:
                    self._reactor.call(self._want_write)

    def _try(self, data: bytes, fds: list[int]) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([data], rights)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _LOST:
                raise
        return True

    def _want_write(self) -> None:
        if not self._ended:
            self._reactor.watch(self._sock, self.read, self._flush)

    def _flush(self) -> None:
        with self._lock:
            while self._backlog and self._try(*self._backlog[0]):
                self._backlog.popleft()
            if not self._backlog and not self._ended:
                self._reactor.watch(self._sock, self.read, None)

    def read(self) -> None:
        """Takes in everything that is there; reactor's thread only."""
        while not self._ended:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, _PACKET, 4)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                data, fds = b"", []
            if not data:
                self.end()
                return
            self._on_packet(json.loads(data), fds)

    def end(self) -> None:
        """Closes the socket and says so, once; reactor's thread only."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._backlog.clear()
        self._reactor.forget(self._sock)
        self._sock.close()
        self._on_end()


class SocketLine:
    """The sending end over a Unix socket; vectors travel in slots of shared memory."""

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        slots: Slots,
        hello: dict[str, str],
        on_end: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._on_end = on_end
        self._credits = Credits()
        self._lent: dict[int, Slot] = {}
        self._known: set[int] = set()
        self._order = threading.Lock()
        self._reactor = reactor
        self._packets = Packets(sock, reactor, self._take_credit, self._end)
        self._packets.write(json.dumps(hello).encode(), [])
        reactor.call(self._packets.start)

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        """Sends the body, and the vector through a slot."""
        self._credits.take(port, check)
        head = b'{"p":' + json.dumps(port).encode()
        if vector is None:
            with self._order:
                self._packets.write(head + b',"b":' + data + b"}", [])
            return
        slot = self._slots.take(vector.nbytes)
        slot.fill(vector)
        kind = str(vector.tensor.dtype).removeprefix("torch.")
        tail = b',"v":' + json.dumps([slot.number, len(vector), kind, slot.size]).encode() + b"}"
        with self._order:
            fds = [] if slot.number in self._known else [slot.fd]
            self._known.add(slot.number)
            self._lent[slot.number] = slot
            self._packets.write(head + b',"b":' + data + tail, fds)

    def _take_credit(self, packet: dict[str, Any], fds: list[int]) -> None:
        slot = self._lent.pop(packet["slot"], None) if "slot" in packet else None
        if slot is not None:
            self._slots.give(slot)
        self._credits.give(packet["p"], packet["n"])

    def _end(self) -> None:
        for number in list(self._lent):
            self._slots.give(self._lent.pop(number))
        self._credits.wake()
        self._on_end()

    def wake(self) -> None:
        """Lets a sender that waits for credit run its check."""
        self._credits.wake()

    def close(self) -> None:
        """Ends the connection after what was written."""
        self._reactor.call(self._packets.end)


class SocketReceiver:
    """The receiving end: makes messages of packets, and returns credit."""

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        on_hello: Callable[[SocketReceiver, dict[str, str]], Callable[[str, Message], None] | None],
        on_end: Callable[[SocketReceiver], None],
    ) -> None:
        self.sender: Address | None = None
        self.receiver: Address | None = None
        self._on_hello = on_hello
        self._deliver: Callable[[str, Message], None] | None = None
        self._memory: dict[int, mmap.mmap] = {}
        self._consumed: dict[str, int] = {}
        self._lock = threading.Lock()
        self._packets = Packets(sock, reactor, self._packet, lambda: on_end(self))
        self._packets.start()

    def drain(self) -> None:
        """Takes in all that the sender has written so far; reactor's thread only."""
        self._packets.read()

    def end(self) -> None:
        """Closes; reactor's thread only."""
        self._packets.end()

    def _packet(self, packet: dict[str, Any], fds: list[int]) -> None:
        if self._deliver is None:
            self.sender = Address.parse(packet["from"])
            self.receiver = Address.parse(packet["to"])
            self._deliver = self._on_hello(self, packet)
            if self._deliver is None:
                self.end()
            return
        assert self.sender is not None
        port = packet["p"]
        if "v" not in packet:
            self._deliver(port, Message(self.sender, packet["b"], None, lambda: self._used(port)))
            return
        number, count, kind, size = packet["v"]
        if fds:
            self._memory[number] = mmap.mmap(fds[0], size)
            os.close(fds[0])
        vector = as_vector(self._memory[number], count, getattr(torch, kind))
        release = lambda: self._credit(port, 1, number)  # noqa: E731
        self._deliver(port, Message(self.sender, packet["b"], vector, release))

    def _used(self, port: str) -> None:
        """Credit for plain messages goes back a few at a time."""
        with self._lock:
            count = self._consumed.get(port, 0) + 1
            self._consumed[port] = 0 if count >= CREDIT // 2 else count
        if count >= CREDIT // 2:
            self._credit(port, count, None)

    def _credit(self, port: str, count: int, slot: int | None) -> None:
        packet: dict[str, Any] = {"p": port, "n": count}
        if slot is not None:
            packet["slot"] = slot
        self._packets.write(json.dumps(packet).encode(), [])
