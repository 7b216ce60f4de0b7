"""The fabric of one host: activities are threads, messages go through Unix sockets."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.base import Body, Cancelled, Gone, Member, Message, View, encode
from unisono.fabric.lines import Line, LoopLine, SocketLine, SocketReceiver
from unisono.fabric.parking import check_parking
from unisono.fabric.ports import Port
from unisono.fabric.reactor import Reactor
from unisono.fabric.slots import Slots
from unisono.fabric.vector import TensorVector, Vector

T = TypeVar("T")
_RETRY = 0.05
_BACKLOG = 512


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
        path.unlink(missing_ok=True)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self.endpoint = f"unix:{path}"
        self.reactor = Reactor()
        self.reactor.call(self._listen)

    def node(self, address: Address, coordinator: str = "") -> LocalNode:
        """A node in this process; ``coordinator`` is the coordinator's endpoint elsewhere."""
        node = LocalNode(self, address)
        self._nodes[address] = node
        if coordinator:
            node.seek_coordinator(Member(COORDINATOR, coordinator))
        return node

    def here(self, address: Address) -> LocalNode | None:
        """The node of that address, if it lives in this process."""
        return self._nodes.get(address)

    def remove(self, address: Address) -> None:
        """A node has closed: connections to it end."""
        self._nodes.pop(address, None)
        if self.reactor is not None:
            self.reactor.call(lambda: self._end_receivers_of(address))

    def connect(self, endpoint: str) -> socket.socket | None:
        """A connection, or None if nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(endpoint.removeprefix("unix:"))
        except OSError:
            sock.close()
            return None
        return sock

    def drain(self, senders: set[Address], then: Callable[[], None]) -> None:
        """Takes in all that these senders wrote, ends their connections, then calls back."""
        if self.reactor is None:
            then()
            return

        def work() -> None:
            self._accept()
            for receiver in list(self._receivers):
                if receiver.sender is None or receiver.sender in senders:
                    receiver.drain()
                if receiver.sender in senders:
                    receiver.end()
            then()

        self.reactor.call(work)

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

        reactor.call(shut)
        reactor.stop()
        self.slots.close()
        self._path.unlink(missing_ok=True)

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
                SocketReceiver(sock, self.reactor, self._hello, self._receiver_ended)
            )

    def _hello(
        self, receiver: SocketReceiver, packet: dict[str, str]
    ) -> Callable[[str, Message], None] | None:
        assert receiver.sender is not None and receiver.receiver is not None
        node = self._nodes.get(receiver.receiver)
        if node is None or node.is_gone(receiver.sender):
            return None
        return node.deliver

    def _receiver_ended(self, receiver: SocketReceiver) -> None:
        if receiver in self._receivers:
            self._receivers.remove(receiver)
        node = None if receiver.receiver is None else self._nodes.get(receiver.receiver)
        if node is not None and receiver.sender is not None:
            node.tell_lost(receiver.sender)


class LocalNode:
    """A ``Fabric`` whose activities are threads."""

    def __init__(self, host: Host, address: Address) -> None:
        self._host = host
        self._address = address
        self._view = View()
        self._ports: dict[str, Port] = {}
        self._lines: dict[Address, Line] = {}
        self._endpoints: dict[Address, str] = {}
        self._gone: set[Address] = set()
        self._lock = threading.RLock()
        self._reason: BaseException | None = None
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.bytes_sent = 0

    @property
    def address(self) -> Address:
        """Who this node is."""
        return self._address

    @property
    def endpoint(self) -> str:
        """Where other processes reach this node."""
        return self._host.endpoint

    def now(self) -> float:
        """Seconds of the monotonic clock, which all processes of a host share."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Parks this thread."""
        check_parking()
        if self._over.wait(seconds):
            self._raise_if_cancelled()

    def lock(self) -> threading.RLock:
        """A thread lock."""
        return threading.RLock()

    def members(self) -> View:
        """Who takes part."""
        return self._view

    def set_members(self, view: View) -> None:
        """Takes over a newer view."""
        with self._lock:
            if view.version <= self._view.version:
                return
            before = {m.address for m in self._view.members}
            after = {m.address for m in view.members}
            self._view = view
            for member in view.members:
                self._endpoints[member.address] = member.endpoint
        gone, joined = before - after, after - before
        self._host.drain(gone, lambda: self._declare(gone, joined, view.version))

    def _declare(self, gone: set[Address], joined: set[Address], version: int) -> None:
        with self._lock:
            self._gone |= gone
            lines = [self._lines.pop(address) for address in gone if address in self._lines]
            ports = list(self._ports.values())
        for line in lines:
            line.close()
        notice = {
            "kind": "members",
            "version": version,
            "gone": [str(a) for a in sorted(gone)],
            "joined": [str(a) for a in sorted(joined)],
        }
        for port in ports:
            if port.members:
                port.put(Message(self._address, notice))
            port.wake()

    def meet(self, member: Member) -> None:
        """Learns where somebody is reached."""
        with self._lock:
            self._endpoints[member.address] = member.endpoint

    def spawn(self, name: str, activity: Callable[[], None]) -> None:
        """Starts a thread."""

        def run() -> None:
            try:
                activity()
            except Cancelled:
                return
            except BaseException as error:
                self.cancel(error)

        title = f"{self._address.name}:{name}"
        thread = threading.Thread(target=run, name=title, daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            self._threads.append(thread)
        thread.start()

    def port(self, name: str, *, members: bool = False, lost: bool = False) -> None:
        """Opens a port."""
        port = self._port(name)
        port.members |= members
        port.lost |= lost

    def post(self, port: str, body: Body) -> None:
        """A message to oneself."""
        self._port(port).put(Message(self._address, body))

    def send(
        self,
        to: Address,
        port: str,
        body: Body,
        vector: Vector | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Sends; see ``Fabric.send``."""
        assert vector is None or isinstance(vector, TensorVector)
        if wait:
            check_parking()
        data = encode(body)

        def check() -> None:
            self._raise_if_cancelled()
            if self.is_gone(to):
                raise Gone(to)

        check()
        line = self._line(to)
        if line is None:
            return
        line.send(port, data, vector, check if wait else None)
        if vector is not None:
            self.bytes_sent += vector.nbytes

    def receive(
        self, port: str, from_: Address | None = None, timeout: float | None = None
    ) -> Message:
        """The next message; see ``Fabric.receive``."""
        check_parking()
        message = self._port(port).take(from_, timeout, self.is_gone, lambda: self._reason)
        if message.vector is None:
            message.release()
        return message

    def compute(self, work: Callable[[], T], cost: float) -> T:
        """Runs ``work``."""
        return work()

    def keep_random_state(self) -> None:
        """Nothing to do: a process that is one learner has its generators for itself."""

    def cancel(self, reason: BaseException) -> None:
        """Ends every blocking call of this node; the first reason is kept."""
        with self._lock:
            self._reason = self._reason or reason
            ports, lines = list(self._ports.values()), list(self._lines.values())
        self._over.set()
        for port in ports:
            port.wake()
        for line in lines:
            line.wake()

    def close(self) -> None:
        """Cancels, joins the threads, ends the connections."""
        self.cancel(Cancelled("closed"))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._lock:
            lines = list(self._lines.values())
            self._lines.clear()
        for line in lines:
            line.close()
        self._host.remove(self._address)

    def is_gone(self, address: Address) -> bool:
        """Whether that member is known to be gone."""
        return address in self._gone

    def deliver(self, port: str, message: Message) -> None:
        """Called by lines: a message has come."""
        if not self.is_gone(message.sender):
            self._port(port).put(message)

    def tell_lost(self, sender: Address) -> None:
        """Called by the host: a peer's connection to this node has ended."""
        with self._lock:
            ports = [p for p in self._ports.values() if p.lost]
        for port in ports:
            port.put(Message(self._address, {"kind": "lost", "who": str(sender)}))

    def seek_coordinator(self, coordinator: Member) -> None:
        """Connects to the coordinator as soon as it can be reached, now and after each loss."""
        self.meet(coordinator)
        with self._lock:
            self._gone.add(COORDINATOR)
        assert self._host.reactor is not None
        self._host.reactor.call(self._try_coordinator)

    def _try_coordinator(self) -> None:
        reactor = self._host.reactor
        if self._over.is_set() or reactor is None:
            return
        sock = self._host.connect(self._endpoints[COORDINATOR])
        if sock is None:
            reactor.call_later(_RETRY, self._try_coordinator)
            return
        line = self._socket_line(sock, COORDINATOR)
        with self._lock:
            self._lines[COORDINATOR] = line
            self._gone.discard(COORDINATOR)
            ports = [p for p in self._ports.values() if p.members]
        for port in ports:
            port.put(Message(self._address, {"kind": "coordinator"}))

    def _socket_line(self, sock: socket.socket, to: Address) -> SocketLine:
        assert self._host.reactor is not None
        hello = {"from": str(self._address), "to": str(to)}
        return SocketLine(
            sock, self._host.reactor, self._host.slots, hello, lambda: self._line_ended(to)
        )

    def _line_ended(self, to: Address) -> None:
        with self._lock:
            self._lines.pop(to, None)
            if to != COORDINATOR or self._over.is_set():
                return
            self._gone.add(COORDINATOR)
            ports = list(self._ports.values())
        for port in ports:
            port.wake()
        self._try_coordinator()

    def _line(self, to: Address) -> Line | None:
        with self._lock:
            line = self._lines.get(to)
            if line is not None:
                return line
            here = self._host.here(to)
            if here is not None:
                line = LoopLine(self._address, here.deliver)
            elif self._endpoints.get(to):
                sock = self._host.connect(self._endpoints[to])
                line = None if sock is None else self._socket_line(sock, to)
            if line is not None:
                self._lines[to] = line
            return line

    def _port(self, name: str) -> Port:
        with self._lock:
            port = self._ports.get(name)
            if port is None:
                port = self._ports[name] = Port()
            return port

    def _raise_if_cancelled(self) -> None:
        if self._reason is not None:
            raise Cancelled(str(self._reason)) from self._reason
