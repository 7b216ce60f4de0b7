"""Connections between nodes: inside a process, and over Unix sockets between processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from unisono.fabric.address import Address
from unisono.fabric.api import Message
from unisono.fabric.frames import (
    LOCAL_GREETING,
    LOCAL_MESSAGE,
    LOCAL_RECEIPT,
    LocalData,
    LocalGreeting,
    LocalReceipt,
    ProtocolError,
    dtype_of,
    read,
)
from unisono.fabric.local.credits import CreditReturns, SendCredits
from unisono.fabric.local.packets import PacketSocket
from unisono.fabric.local.reactor import Reactor
from unisono.fabric.local.shared_memory import Slot, SlotPool, as_vector, map_memory
from unisono.fabric.vector import TensorVector


class Link(Protocol):
    """The sending end of one sender's connection to one receiver."""

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        """Sends; ``check`` raises when waiting has become pointless; None: do not wait."""

    def drop(self) -> None:
        """Ends the connection at once."""

    def close(self) -> None:
        """Ends the connection after what was written."""

    def join(self, patience: float) -> None:
        """Waits for the end; ends the connection anyway when that takes too long."""


class Inbox(Protocol):
    """Where the messages of a connection go."""

    @property
    def vector_limit(self) -> int:
        """Bytes of the longest vector that is accepted."""

    def deliver(self, port: str, message: Message) -> None:
        """Delivers a message."""


class InProcessLink:
    """A link inside one process: the same credit, order and copies, without a socket."""

    def __init__(
        self, sender: Address, deliver: Callable[[str, Message], None], changed: threading.Condition
    ) -> None:
        self._sender = sender
        self._deliver = deliver
        self._credits = SendCredits(changed)

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        self._credits.take(port, check)
        copy = None if vector is None else vector.copy()
        message = Message(self._sender, json.loads(data), copy, lambda: self._credits.give(port, 1))
        self._deliver(port, message)

    def drop(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Nothing to give back."""

    def join(self, patience: float) -> None:
        """Nothing to wait for."""


class UnixLink:
    """The sending end over a Unix socket; vectors travel in slots of shared memory.

    It begins with a greeting that says who speaks to whom. ``on_ready`` is called when the
    receiver has accepted it, ``on_end`` once at the end; both in the reactor's thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        slots: SlotPool,
        greeting: dict[str, str],
        changed: threading.Condition,
        on_ready: Callable[[UnixLink], None],
        on_end: Callable[[UnixLink], None],
    ) -> None:
        self._slots = slots
        self._on_ready = on_ready
        self._on_end = on_end
        self._credits = SendCredits(changed)
        self._lent: dict[int, Slot] = {}
        self._known: set[int] = set()
        self._order = threading.Lock()
        self._over = False
        self._closed = threading.Event()
        self._reactor = reactor
        self._packets = PacketSocket(sock, reactor, self._packet, self._end)
        self._packets.peer = Address.parse(greeting["to"]).name
        self._packets.write(json.dumps(greeting).encode(), [])
        reactor.call(self._packets.start)

    def send(
        self, port: str, data: bytes, vector: TensorVector | None, check: Callable[[], None] | None
    ) -> None:
        """Sends the body, and the vector through a slot."""
        self._credits.take(port, check)
        head = b'{"p":' + json.dumps(port).encode() + b',"b":' + data
        if vector is None:
            self._packets.write(head + b"}", [])
            return
        slot = self._slots.take(vector.nbytes)
        slot.fill(vector)
        kind = str(vector.tensor.dtype).removeprefix("torch.")
        with self._order:
            if self._over:
                self._slots.give(slot)
                return
            stale = self._known & self._slots.discarded
            fds = [] if slot.number in self._known else [slot.fd]
            self._known = self._known - stale | {slot.number}
            self._lent[slot.number] = slot
            place = json.dumps([slot.number, len(vector), kind]).encode()
            if stale:
                head += b',"stale":' + json.dumps(list(stale)).encode()
            self._packets.write(head + b',"v":' + place + b"}", fds)

    def drop(self) -> None:
        self._reactor.call(self._packets.end)

    def close(self) -> None:
        self._reactor.call(self._packets.finish)

    def join(self, patience: float) -> None:
        if not self._closed.wait(patience):
            self._reactor.run(self._packets.end)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        receipt = read(data, LOCAL_RECEIPT)
        if receipt.p is None:
            self._on_ready(self)
            return
        slot = None if receipt.slot is None else self._lent.pop(receipt.slot, None)
        if slot is not None:
            self._slots.give(slot)
        self._credits.give(receipt.p, receipt.n)

    def _end(self) -> None:
        with self._order:
            self._over = True
            lent, self._lent = self._lent, {}
        for slot in lent.values():
            self._slots.discard(slot)
        self._on_end(self)
        self._closed.set()


class UnixReceiver:
    """The receiving end: makes messages of packets, and returns credit.

    ``on_greeting`` says where the messages go; None refuses them. Reactor's thread only, except
    that messages are released in any thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        on_greeting: Callable[[Address, Address], Inbox | None],
        on_end: Callable[[UnixReceiver], None],
    ) -> None:
        self.sender: Address | None = None
        self.receiver: Address | None = None
        self._on_greeting = on_greeting
        self._inbox: Inbox | None = None
        self._memory: dict[int, torch.Tensor] = {}
        self._tally = CreditReturns()
        self._on_end = on_end
        self._packets = PacketSocket(sock, reactor, self._packet, self._end)
        self._packets.start()

    def drain(self) -> None:
        """Takes in all that the sender has written so far."""
        self._packets.read()

    def end(self) -> None:
        self._packets.end()

    def _packet(self, data: bytes, fds: list[int]) -> None:
        if self._inbox is None:
            self._greet(read(data, LOCAL_GREETING))
            return
        assert self.sender is not None
        message = read(data, LOCAL_MESSAGE)
        for number in message.stale:
            self._memory.pop(number, None)
        vector = self._vector(message, fds, self._inbox.vector_limit)
        port, slot = message.p, None if message.v is None else message.v[0]
        self._credit(port, self._tally.arrive(port), None)
        release = lambda: self._release(port, slot)  # noqa: E731
        self._inbox.deliver(port, Message(self.sender, message.b, vector, release))

    def _vector(self, message: LocalData, fds: list[int], limit: int) -> TensorVector | None:
        if message.v is None:
            return None
        slot, count, kind = message.v
        if fds:
            self._memory[slot] = map_memory(fds[0])
        dtype, memory = dtype_of(kind), self._memory.get(slot)
        size = count * dtype.itemsize
        if memory is None or size > min(limit, memory.numel()):
            raise ProtocolError(f"a vector of {size} bytes, more than are there or accepted")
        return as_vector(memory, count, dtype)

    def _greet(self, greeting: LocalGreeting) -> None:
        self.sender, self.receiver = greeting.sender, greeting.receiver
        self._packets.peer = self.sender.name
        self._inbox = self._on_greeting(self.sender, self.receiver)
        if self._inbox is None:
            self.end()
        else:
            self._packets.write(b"{}", [])

    def _release(self, port: str, slot: int | None) -> None:
        self._credit(port, self._tally.consume(port, at_once=slot is not None), slot)

    def _credit(self, port: str, count: int, slot: int | None) -> None:
        if count:
            receipt = LocalReceipt(p=port, n=count, slot=slot)
            self._packets.write(receipt.model_dump_json().encode(), [])

    def _end(self) -> None:
        self._memory.clear()
        self._on_end(self)
