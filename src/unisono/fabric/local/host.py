"""The fabric of real machines: activities are threads, messages go through sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from unisono.errors import RESUME, UserError
from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import Member, Traffic
from unisono.fabric.local.links import Inbox, Link, UnixLink, UnixReceiver
from unisono.fabric.local.node import LocalNode
from unisono.fabric.local.reactor import Reactor
from unisono.fabric.local.shared_memory import SlotPool
from unisono.fabric.network.endpoints import join, local_path
from unisono.fabric.network.tcp_listener import NetworkSettings, TcpListener

__all__ = ["Host", "LocalNode"]

_BACKLOG = 512
_DRAFT = ".new"
_LONGEST_PATH = 107 - len(_DRAFT)
_NOBODY_THERE = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError)


class Host:
    """This process' part of the fabric. It may hold several nodes.

    Without a ``directory`` and a ``network`` it is alone: no socket, no thread of its own. With a
    directory it listens on a Unix socket in it, and reaches the other processes of this machine;
    with a network also on a port, and reaches those of other machines.
    """

    def __init__(
        self,
        directory: Path | None = None,
        name: str | None = None,
        *,
        network: NetworkSettings | None = None,
    ) -> None:
        self._nodes: dict[Address, LocalNode] = {}
        self._receivers: list[UnixReceiver] = []
        self._listener: socket.socket | None = None
        self._tcp_listener: TcpListener | None = None
        self.slots = SlotPool()
        self.reactor: Reactor | None = None
        self.endpoint = ""
        if directory is not None:
            self._listen_in(directory, name)
        if directory is not None or network is not None:
            self.reactor = Reactor(self._fail)
        if network is not None:
            assert self.reactor is not None
            self._tcp_listener = TcpListener(
                network, self.reactor, self._greeted, self._tell_lost, self._unreachable
            )
            self.endpoint = join(self._tcp_listener.place, self._path if directory else None)

    def _listen_in(self, directory: Path, name: str | None) -> None:
        path = directory / (name or f"{os.getpid()}.{id(self):x}.sock")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise UserError(f"{path} is too long a name for a socket: set TMPDIR to a shorter one")
        self._path = path
        self._listener = _listen_at(path)
        self._inode = path.stat().st_ino
        self.endpoint = f"unix:{path}"

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

    def link(
        self,
        sender: Address,
        to: Member,
        changed: threading.Condition,
        traffic: Traffic,
        on_ready: Callable[[Link], None],
        on_end: Callable[[Link], None],
    ) -> Link | None:
        """A connection to a member elsewhere, or None if nobody listens there.

        ``on_ready`` is called when the member has accepted it, ``on_end`` once at the end; both in
        the reactor's thread.
        """
        assert self.reactor is not None
        path = local_path(to.endpoint)
        if path is not None:
            sock = _connect(path)
            if sock is None:
                return None
            greeting = {"from": str(sender), "to": str(to.address)}
            return UnixLink(sock, self.reactor, self.slots, greeting, changed, on_ready, on_end)
        if self._tcp_listener is None:
            raise UserError(f"{to.address.name} is at {to.endpoint}: on another machine")
        return self._tcp_listener.link(sender, to, changed, traffic, on_ready, on_end)

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
            if self._tcp_listener is not None:
                self._tcp_listener.drain(receiver, senders, end=end)
            then()

        if not senders or self.reactor is None or not self.reactor.run(work):
            then()

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.close()
        if self.reactor is None:
            return
        reactor = self.reactor

        def shut() -> None:
            if self._listener is not None:
                reactor.forget(self._listener)
                self._listener.close()
            for receiver in list(self._receivers):
                receiver.end()
            if self._tcp_listener is not None:
                self._tcp_listener.shut()

        if not reactor.run(shut):
            return
        reactor.stop()
        self.slots.close()
        if self._listener is None:
            return
        with suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # and not a successor's
                self._path.unlink()

    def _end_receivers_of(self, address: Address) -> None:
        for receiver in list(self._receivers):
            if receiver.receiver == address:
                receiver.end()
        if self._tcp_listener is not None:
            self._tcp_listener.end_sessions_of(address)

    def _listen(self) -> None:
        assert self.reactor is not None
        if self._listener is not None:
            self.reactor.watch(self._listener, self._accept, None)
        if self._tcp_listener is not None:
            self._tcp_listener.open()

    def _accept(self) -> None:
        assert self.reactor is not None
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._receivers.append(
                UnixReceiver(sock, self.reactor, self._greeted, self._receiver_ended)
            )

    def _greeted(self, sender: Address, receiver: Address) -> Inbox | None:
        node = self._nodes.get(receiver)
        return None if node is None or node.is_gone(sender) else node

    def _fail(self, error: BaseException) -> None:
        """The reactor has met a bug: nobody here may wait for what will not come."""
        for node in list(self._nodes.values()):
            node.cancel(error)

    def _receiver_ended(self, receiver: UnixReceiver) -> None:
        if receiver in self._receivers:
            self._receivers.remove(receiver)
        if receiver.receiver is not None and receiver.sender is not None:
            self._tell_lost(receiver.receiver, receiver.sender)

    def _unreachable(self, sender: Address, to: Member, reason: str) -> bool:
        """A member cannot be reached that nobody has declared dead; whether to wait no longer.

        A learner that does not reach the coordinator either may be cut off itself, and waits.
        """
        node = self._nodes.get(sender)
        if node is None or node.is_away:
            return False
        if sender == COORDINATOR:
            node.tell_lost(to.address)
        else:
            node.cancel(
                UserError(
                    f"{sender.name} cannot reach {to.address.name} at {to.endpoint} ({reason}), "
                    "and both reach the coordinator: is there a firewall between them? "
                    f"If there is none, {RESUME}"
                )
            )
        return True

    def _tell_lost(self, receiver: Address, sender: Address) -> None:
        node = self._nodes.get(receiver)
        if node is not None:
            node.tell_lost(sender)


def _connect(path: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
    except _NOBODY_THERE:
        sock.close()
        return None
    return sock


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
