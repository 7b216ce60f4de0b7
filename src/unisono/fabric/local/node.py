"""A node of this process: activities are threads, messages go through links."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import (
    VECTOR_LIMIT,
    Body,
    Cancelled,
    ConnectionLost,
    CoordinatorFound,
    Gone,
    Member,
    MembersChanged,
    Message,
    PortName,
    Rejected,
    Screen,
    Traffic,
    View,
    encode,
    name_of,
)
from unisono.fabric.blocking import check_may_block
from unisono.fabric.local.links import InProcessLink, Link
from unisono.fabric.local.ports import Port
from unisono.fabric.vector import TensorVector, Vector

if TYPE_CHECKING:
    from unisono.fabric.local.host import Host

T = TypeVar("T")
_RETRY = 0.05
_LINGER = 5.0


class LocalNode:
    """A ``Fabric`` whose activities are threads.

    Two things make somebody out of reach. ``_gone`` are the declared: their messages are dropped
    and their connections refused, for good. The coordinator is ``_away`` while the connection to
    it is broken; it is never refused, because its next incarnation may speak before it is found
    again.
    """

    def __init__(self, host: Host, address: Address) -> None:
        self._host = host
        self._address = address
        self._view = View()
        self._ports: dict[str, Port] = {}
        self._links: dict[Address, Link] = {}
        self._endpoints: dict[Address, str] = {}
        self._gone: set[Address] = set()
        self._away = False
        self._lock = threading.RLock()
        self._credit_changed = threading.Condition()
        self._reason: BaseException | None = None
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._screen = Screen(self._tell_rejected)
        self.traffic: dict[Address, Traffic] = {}
        self.vector_limit = VECTOR_LIMIT

    @property
    def address(self) -> Address:
        return self._address

    @property
    def endpoint(self) -> str:
        return self._host.endpoint

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        check_may_block()
        self._over.wait(min(seconds, threading.TIMEOUT_MAX))
        self._raise_if_cancelled()

    def lock(self) -> threading.RLock:
        return threading.RLock()

    def members(self) -> View:
        return self._view

    def set_members(self, view: View) -> None:
        """Takes over a newer view; what the leavers sent is in their ports before they are gone."""
        with self._lock:
            if view.version <= self._view.version:
                return
            gone, joined = view.changes_since(self._view)
            self._view = view
            for member in joined:
                self._endpoints[member.address] = member.endpoint
        notice = MembersChanged(view.version, gone, tuple(m.address for m in joined))
        self._host.drain(self._address, set(gone), lambda: self._declare(notice), end=True)

    def _declare(self, notice: MembersChanged) -> None:
        with self._lock:
            self._gone.update(notice.gone)
            links = [self._links.pop(who) for who in notice.gone if who in self._links]
        for link in links:
            link.drop()
        self._notify(notice)

    def _notify(self, notice: Body) -> None:
        """Tells the ports that want to know of members, and lets everybody look again."""
        self._tell(lambda port: port.members, notice)
        self._wake()

    def _tell(self, wanted: Callable[[Port], bool], notice: Body) -> None:
        with self._lock:
            ports = [port for port in self._ports.values() if wanted(port)]
        for port in ports:
            port.put(Message(self._address, notice))

    def _tell_rejected(self, rejected: Rejected) -> None:
        self._tell(lambda port: port.members or port.lost, rejected)

    def _wake(self) -> None:
        """Lets all that wait look whether they still should."""
        with self._lock:
            ports = list(self._ports.values())
        for port in ports:
            port.wake()
        with self._credit_changed:
            self._credit_changed.notify_all()

    def meet(self, member: Member) -> None:
        with self._lock:
            self._endpoints[member.address] = member.endpoint
        with self._credit_changed:
            self._credit_changed.notify_all()

    def spawn(self, name: str, activity: Callable[[], None]) -> None:

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
            thread.start()
            self._threads.append(thread)

    def port(self, port: PortName, *, members: bool = False, lost: bool = False) -> None:
        opened = self._port(name_of(port))
        opened.members |= members
        opened.lost |= lost

    def post(self, port: PortName, body: Body) -> None:
        self._port(name_of(port)).put(Message(self._address, body))

    def send(
        self,
        to: Address,
        port: PortName,
        body: Body,
        vector: Vector | None = None,
        *,
        wait: bool = True,
    ) -> None:
        assert vector is None or isinstance(vector, TensorVector)
        if wait:
            check_may_block()
        data = encode(body)

        def check() -> None:
            self._raise_if_cancelled()
            if self._is_out_of_reach(to):
                raise Gone(to)

        check()
        if wait:
            self._wait_until_known(to, check)
        link = self._link(to)
        if link is None:
            return
        link.send(name_of(port), data, vector, check if wait else None)
        if vector is not None:
            with self._lock:
                self._traffic(to).bytes += vector.nbytes

    @property
    def bytes_sent(self) -> int:
        with self._lock:
            return sum(traffic.bytes for traffic in self.traffic.values())

    def _traffic(self, to: Address) -> Traffic:
        return self.traffic.setdefault(to, Traffic())

    def _wait_until_known(self, to: Address, check: Callable[[], None]) -> None:
        """In a run: who is named may be in a view that still lies in another port."""
        if to in self._endpoints or not self._endpoints:
            return
        with self._credit_changed:
            while to not in self._endpoints and self._host.here(to) is None:
                check()
                self._credit_changed.wait()

    def receive(
        self, port: PortName, from_: Address | None = None, timeout: float | None = None
    ) -> Message[Any]:
        check_may_block()
        queue = self._port(name_of(port))
        while True:
            message = queue.take(from_, timeout, self._is_out_of_reach, self._raise_if_cancelled)
            if message.vector is None:
                message.release()
            if self._screen.passes(port, message):
                return message

    def compute(self, work: Callable[[], T], cost: float) -> T:
        return work()

    def limit_vectors(self, nbytes: int) -> None:
        self.vector_limit = nbytes

    def keep_random_state(self) -> None:
        """Nothing to do: a process that is one learner has its generators for itself."""

    def cancel(self, reason: BaseException) -> None:
        """Ends every blocking call of this node; the first reason is kept."""
        with self._lock:
            self._reason = self._reason or reason
        self._over.set()
        self._wake()

    def close(self) -> None:
        self.cancel(Cancelled("closed"))
        while threads := self._others():
            for thread in threads:
                thread.join()
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()
        deadline = self.now() + _LINGER
        for link in links:
            link.join(max(0.0, deadline - self.now()))
        self._host.remove(self._address)
        with self._lock:
            ports = list(self._ports.values())
        for port in ports:
            port.clear()

    def _others(self) -> list[threading.Thread]:
        me = threading.current_thread()
        with self._lock:
            return [t for t in self._threads if t is not me and t.is_alive()]

    def is_gone(self, address: Address) -> bool:
        return address in self._gone

    def deliver(self, port: str, message: Message) -> None:
        """Called by links when a message has arrived."""
        if not (self._over.is_set() or self.is_gone(message.sender)):
            self._port(port).put(message)

    @property
    def is_away(self) -> bool:
        """Whether the coordinator is sought and not found."""
        with self._lock:
            return self._away

    def tell_lost(self, sender: Address) -> None:
        """Called by the host: a peer's connection to this node has ended."""
        self._tell(lambda port: port.lost, ConnectionLost(sender))

    def tell_closed(self, neighbour: Address) -> None:
        """Called by the host: another node of this process has closed."""
        with self._lock:
            self._links.pop(neighbour, None)
        self.tell_lost(neighbour)

    def seek_coordinator(self, coordinator: Member) -> None:
        """Connects to the coordinator as soon as it can be reached, now and after each loss."""
        self.meet(coordinator)
        self._away = True
        assert self._host.reactor is not None
        self._host.reactor.call(self._try_coordinator)

    def _try_coordinator(self) -> None:
        assert self._host.reactor is not None
        if self._over.is_set():
            return
        coordinator = Member(COORDINATOR, self._endpoints[COORDINATOR])
        found, lost = self._coordinator_found, self._coordinator_lost
        changed, traffic = self._credit_changed, self._traffic(COORDINATOR)
        link = self._host.link(self._address, coordinator, changed, traffic, found, lost)
        if link is None:
            self._host.reactor.call_later(_RETRY, self._try_coordinator)

    def _coordinator_found(self, link: Link) -> None:
        with self._lock:
            if self._over.is_set():
                link.drop()
                return
            self._links[COORDINATOR] = link
            self._away = False
        self._notify(CoordinatorFound())

    def _coordinator_lost(self, link: Link) -> None:
        def leave() -> None:
            with self._lock:
                self._away = True
            self._link_ended(COORDINATOR, link)
            self._wake()

        assert self._host.reactor is not None
        self._host.drain(self._address, {COORDINATOR}, leave, end=False)
        self._host.reactor.call_later(_RETRY, self._try_coordinator)

    def _link_ended(self, to: Address, link: Link) -> None:
        with self._lock:
            if self._links.get(to) is link:
                del self._links[to]

    def _link(self, to: Address) -> Link | None:
        """The connection, made if need be; None: nobody listens there."""
        with self._lock:
            link = self._links.get(to)
            if link is not None or (self._away and to == COORDINATOR):
                return link
            here = self._host.here(to)
            if here is not None:
                link = InProcessLink(self._address, here.deliver, self._credit_changed)
            elif self._endpoints.get(to):
                link = self._host.link(
                    self._address,
                    Member(to, self._endpoints[to]),
                    self._credit_changed,
                    self._traffic(to),
                    lambda link: None,
                    lambda link: self._link_ended(to, link),
                )
            if link is not None:
                self._links[to] = link
            return link

    def _port(self, name: str) -> Port:
        with self._lock:
            port = self._ports.get(name)
            if port is None:
                port = self._ports[name] = Port()
            return port

    def _is_out_of_reach(self, address: Address) -> bool:
        return address in self._gone or (self._away and address == COORDINATOR)

    def _raise_if_cancelled(self) -> None:
        if self._reason is not None:
            raise Cancelled(str(self._reason)) from self._reason
