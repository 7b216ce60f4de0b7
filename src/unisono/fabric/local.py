"""The fabric of one host: activities are threads, messages go through Unix sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from unisono.events import UserError
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.base import Member, Message
from unisono.fabric.lines import SocketReceiver
from unisono.fabric.node import LocalNode
from unisono.fabric.reactor import Reactor
from unisono.fabric.slots import Slots

__all__ = ["Host", "LocalNode"]

_BACKLOG = 512
_DRAFT = ".new"
_LONGEST_PATH = 107 - len(_DRAFT)
_NOBODY_THERE = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError)


class Host:
    """This process' part of the fabric. It may hold several nodes.

    Without a ``directory`` it is alone: no socket, no thread of its own. With one it listens on a
    Unix socket in it, and reaches the other processes of the run.
    """

    def __init__(self, directory: Path | None = None, name: str | None = None) -> None:
        self._nodes: dict[Address, LocalNode] = {}
        self._receivers: list[SocketReceiver] = []
        self.slots = Slots()
        self.reactor: Reactor | None = None
        self.endpoint = ""
        if directory is None:
            return
        path = directory / (name or f"{os.getpid()}.{id(self):x}.sock")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise UserError(f"{path} is too long a name for a socket: set TMPDIR to a shorter one")
        self._path = path
        self._listener = _listen_at(path)
        self._inode = path.stat().st_ino
        self.endpoint = f"unix:{path}"
        self.reactor = Reactor(self._fail)

    def node(self, address: Address, coordinator: str = "") -> LocalNode:
        """A node in this process; ``coordinator`` is the coordinator's endpoint elsewhere.

        Connections are accepted from the first node on: who comes earlier waits, and is not refused
        for want of the one that it looks for.
        """
        node = LocalNode(self, address)
        self._nodes[address] = node
        if self.reactor is not None:
            self.reactor.call(self._listen)
        if coordinator:
            node.seek_coordinator(Member(COORDINATOR, coordinator))
        return node

    def here(self, address: Address) -> LocalNode | None:
        """The node of that address, if it lives in this process."""
        return self._nodes.get(address)

    def remove(self, address: Address) -> None:
        """A node has closed: connections to it end."""
        if self._nodes.pop(address, None) is None:
            return
        for node in list(self._nodes.values()):
            node.tell_closed(address)
        if self.reactor is not None:
            self.reactor.call(lambda: self._end_receivers_of(address))

    def connect(self, endpoint: str) -> socket.socket | None:
        """A connection, or None if nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(endpoint.removeprefix("unix:"))
        except _NOBODY_THERE:
            sock.close()
            return None
        return sock

    def drain(
        self, receiver: Address, senders: set[Address], then: Callable[[], None], *, end: bool
    ) -> None:
        """Takes in what the senders wrote to the receiver, ends them if asked, then calls back."""

        def work() -> None:
            self._accept()
            for connection in list(self._receivers):
                if connection.sender is None:
                    connection.drain()
                if connection.receiver == receiver and connection.sender in senders:
                    connection.drain()
                    if end:
                        connection.end()
            then()

        if not senders or self.reactor is None or not self.reactor.run(work):
            then()

    def close(self) -> None:
        """Closes the nodes, the sockets and the thread."""
        for node in list(self._nodes.values()):
            node.close()
        if self.reactor is None:
            return
        reactor = self.reactor

        def shut() -> None:
            reactor.forget(self._listener)
            self._listener.close()
            for receiver in list(self._receivers):
                receiver.end()

        if not reactor.run(shut):
            return
        reactor.stop()
        self.slots.close()
        with suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # and not a successor's
                self._path.unlink()

    def _end_receivers_of(self, address: Address) -> None:
        for receiver in list(self._receivers):
            if receiver.receiver == address:
                receiver.end()

    def _listen(self) -> None:
        assert self.reactor is not None
        self.reactor.watch(self._listener, self._accept, None)

    def _accept(self) -> None:
        assert self.reactor is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._receivers.append(
                SocketReceiver(sock, self.reactor, self._greeted, self._receiver_ended)
            )

    def _greeted(self, sender: Address, receiver: Address) -> Callable[[str, Message], None] | None:
        node = self._nodes.get(receiver)
        return None if node is None or node.is_gone(sender) else node.deliver

    def _fail(self, error: BaseException) -> None:
        """The reactor has met a bug: nobody here may wait for what will not come."""
        for node in list(self._nodes.values()):
            node.cancel(error)

    def _receiver_ended(self, receiver: SocketReceiver) -> None:
        if receiver in self._receivers:
            self._receivers.remove(receiver)
        node = None if receiver.receiver is None else self._nodes.get(receiver.receiver)
        if node is not None and receiver.sender is not None:
            node.tell_lost(receiver.sender)


def _listen_at(path: Path) -> socket.socket:
    """A socket that listens from the moment on at which its name exists; replaces a dead one's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    draft = path.with_name(f"{path.name}{_DRAFT}")
    draft.unlink(missing_ok=True)
    listener.bind(str(draft))
    listener.listen(_BACKLOG)
    draft.replace(path)
    return listener
