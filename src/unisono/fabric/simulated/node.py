"""The simulated fabric: nodes whose activities are greenlets on the kernel's virtual clock."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import greenlet

from unisono.fabric.address import COORDINATOR, Address
from unisono.fabric.api import (
    CREDIT,
    Body,
    Cancelled,
    ConnectionLost,
    CoordinatorFound,
    Full,
    Gone,
    Member,
    Message,
    PortName,
    Rejected,
    Screen,
    TimedOut,
    Traffic,
    View,
    encode,
    encoded_size,
    name_of,
)
from unisono.fabric.blocking import check_may_block, forbidden_context
from unisono.fabric.codec import is_fixed, is_message
from unisono.fabric.simulated.kernel import Kernel
from unisono.fabric.simulated.network import Channel
from unisono.fabric.simulated.waiter import Waiter
from unisono.fabric.vector import Vector

T = TypeVar("T")


class _Port:
    __slots__ = ("lost", "members", "queue", "waiters")

    def __init__(self) -> None:
        self.members = False
        self.lost = False
        self.queue: deque[Message] = deque()
        self.waiters: list[Waiter] = []

    def take(self, from_: Address | None) -> Message | None:
        """The next message of anyone, which there must be, or of one."""
        if from_ is None:
            return self.queue.popleft()
        for place, message in enumerate(self.queue):
            if message.sender == from_:
                del self.queue[place]
                return message
        return None

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.wake()


@dataclass(slots=True)
class _Shared(Message[Any]):
    """A message that the receiver gets without reading it from its data, nor a copy."""


class _Lock:
    """A lock between the greenlets of one node; waiting for it is a switch like any other."""

    __slots__ = ("_depth", "_kernel", "_node", "_owner", "_waiters")

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._kernel = node.kernel
        self._owner: Any = None
        self._depth = 0
        self._waiters: list[Waiter] = []

    def __enter__(self) -> _Lock:
        me, kernel = greenlet.getcurrent(), self._kernel
        if kernel.may_switch and forbidden_context() is None:
            self._node.may_set_aside()
        while self._owner is not None and self._owner is not me:
            check_may_block()
            self._waiters.append(kernel.waiter())
            kernel.park()
        self._owner = me
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiters:
                waiters, self._waiters = self._waiters, []
                for waiter in waiters:
                    waiter.wake()


class SimulatedNode:
    """A ``Fabric`` on a ``Kernel``.

    ``slowness`` multiplies the cost of its computing. With a ``spread`` s each cost is also
    multiplied by exp(s z - s^2 / 2), z standard normal: a factor whose mean is 1. The draws depend
    on the address alone. A node has one core: what other activities send while one is computing
    makes that take longer.
    """

    def __init__(
        self, kernel: Kernel, address: Address, slowness: float = 1.0, spread: float = 0.0
    ) -> None:
        self.kernel = kernel
        self.address = address
        """Who this node is."""
        self.is_up = False
        """Whether the kernel delivers messages to it."""
        self.inbound = kernel.inbound(address)
        self._slowness = slowness
        self._spread = spread
        self._random = random.Random(str(address))
        self.computed_s = 0.0
        """Virtual seconds that went into computing."""
        self._is_computing = False
        self._sent_meanwhile = 0.0
        self._view = View()
        self._ports: dict[str, _Port] = {}
        self._gone: set[Address] = set()
        self._channels = kernel.outbound(address)
        self._credit_waiters: list[Waiter] = []
        self._reason: BaseException | None = None
        self._screen = Screen(self._tell_rejected)
        self.traffic: dict[Address, Traffic] = {}
        kernel.add(self)

    @property
    def endpoint(self) -> str:
        """A name; the kernel finds nodes by their address."""
        return f"sim:{self.address}"

    def now(self) -> float:
        """Virtual seconds."""
        return self.kernel.now

    def sleep(self, seconds: float) -> None:
        """Lets the clock move on."""
        kernel = self.kernel
        if self._reason is not None or kernel.may_switch:
            self._enter()
        waiter = kernel.waiter()
        kernel.wake_at(kernel.now + seconds, waiter)
        while not waiter.fired:
            kernel.park()
            if self._reason is not None:
                self._raise_if_cancelled()

    def lock(self) -> _Lock:
        """A lock between this node's activities."""
        return _Lock(self)

    def members(self) -> View:
        """Who takes part."""
        return self._view

    def set_members(self, view: View) -> None:
        """Takes over a newer view; what the leavers sent is delivered before they are gone."""
        if view.version <= self._view.version:
            return
        notice = view.notice(self._view)
        self._view = view
        for address in notice.gone:
            self.kernel.flush(address, self.address)
        self._gone.update(notice.gone)
        self._notify(notice, lambda port: port.members)

    def meet(self, member: Member) -> None:
        """Nothing to learn: the kernel knows everybody."""

    def spawn(self, name: str, activity: Callable[[], None]) -> None:
        """Starts a greenlet."""

        def run() -> None:
            try:
                activity()
            except (Cancelled, greenlet.GreenletExit):
                return
            except Exception as error:  # the rest, as Ctrl-C, ends the simulation
                self.cancel(error)

        self.kernel.start(self, name, run)

    def port(self, port: PortName, *, members: bool = False, lost: bool = False) -> None:
        """Opens a port."""
        opened = self._port(name_of(port))
        opened.members |= members
        opened.lost |= lost

    def post(self, port: PortName, body: Body) -> None:
        """A message to oneself."""
        name = port if isinstance(port, str) else port.name
        self.put(name, Message(self.address, body))

    def send(
        self,
        to: Address,
        port: PortName,
        body: Body,
        vector: Vector | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Sends a copy; the kernel delivers it when the network lets it.

        Where only time is simulated, messages are not copied: who has sent or received one does not
        change it.
        """
        kernel = self.kernel
        content = body
        kind: type[Message[Any]] = _Shared
        if kernel.numerics or not is_message(body):
            data = encode(body)
            nbytes = len(data)
            if not (is_message(body) and is_fixed(type(body))):
                content, kind = json.loads(data), Message
        else:
            nbytes = encoded_size(body)
        if wait:
            if self._reason is not None or kernel.may_switch:
                self._enter()
        elif self._reason is not None:
            self._raise_if_cancelled()
        key = (to, port if isinstance(port, str) else port.name)
        while True:
            if self._gone and to in self._gone:
                raise Gone(to)
            channel = self._channels.get(key)
            if channel is None or channel.unreleased < CREDIT:
                break
            if not wait:
                raise Full
            self._credit_waiters.append(kernel.waiter())
            kernel.park()
            self._raise_if_cancelled()
        receiver = kernel.nodes.get(to)
        if receiver is None:
            return
        if channel is None:
            channel = self._channels[key] = Channel(self.address, receiver, key[1])
        channel.receiver = receiver
        channel.unreleased += 1
        copy = None
        if vector is not None:
            copy = vector.copy()
            self._count_sent(to, vector.nbytes)
        release = partial(self._give_credit, channel)
        kernel.send(channel, kind(self.address, content, copy, release), nbytes)

    def _count_sent(self, to: Address, nbytes: int) -> None:
        traffic = self.traffic.get(to)
        if traffic is None:
            traffic = self.traffic[to] = Traffic()
        traffic.bytes += nbytes
        if self._is_computing:
            self._sent_meanwhile += self.kernel.network.sending(nbytes)

    @property
    def bytes_sent(self) -> int:
        """Bytes of vectors that this node has sent."""
        return sum(traffic.bytes for traffic in self.traffic.values())

    def receive(
        self, port: PortName, from_: Address | None = None, timeout: float | None = None
    ) -> Message[Any]:
        """The next message."""
        kernel = self.kernel
        if self._reason is not None or kernel.may_switch:
            self._enter()
        name = port if isinstance(port, str) else port.name
        queue = self._ports.get(name) or self._port(name)
        timer: Waiter | None = None
        while True:
            if self._reason is not None:
                self._raise_if_cancelled()
            message = queue.take(from_) if queue.queue else None
            if message is not None:
                if message.vector is None and message.on_release is not None:
                    message.release()
                if self._read(port, message):
                    return message
                continue
            if from_ is not None and from_ in self._gone:
                raise Gone(from_)
            if timer is not None and timer.fired:
                raise TimedOut
            if timeout == 0.0 and kernel.is_still:
                raise TimedOut
            waiter = kernel.waiter()
            queue.waiters.append(waiter)
            if timeout is not None:
                if timer is None:
                    timer = kernel.waiter()
                    kernel.fire_at(kernel.now + timeout, timer)
                timer.target = waiter
            kernel.park()

    def _read(self, port: PortName, message: Message[Any]) -> bool:
        """Gives a message of a typed port its type; False: it was malformed, and is dropped."""
        if type(message) is _Shared:
            if not isinstance(port, str) and port.accepts(type(message.body)):
                return True
            message.body = json.loads(encode(message.body))
        elif is_message(message.body):
            return True  # posted here
        return self._screen.passes(port, message)

    def compute(self, work: Callable[[], T], cost: float) -> T:
        """Runs ``work`` now (or skips it), and lets ``cost`` seconds pass."""
        result = work() if self.kernel.numerics else None
        seconds = cost * self._slowness
        if self._spread > 0:
            seconds *= self._random.lognormvariate(-(self._spread**2) / 2, self._spread)
        self.computed_s += seconds
        self._is_computing = True
        self.sleep(seconds)
        while self._sent_meanwhile > 0:
            more, self._sent_meanwhile = self._sent_meanwhile, 0.0
            self.sleep(more)
        self._is_computing = False
        return result  # type: ignore[return-value]

    def limit_vectors(self, nbytes: int) -> None:
        """Nothing to do: nobody here is malicious."""

    def keep_random_state(self) -> None:
        """The kernel swaps torch's generator whenever this node is resumed."""
        self.kernel.keep_random_state(self)

    def cancel(self, reason: BaseException) -> None:
        """Ends every blocking call of this node."""
        self._reason = self._reason or reason
        for port in self._ports.values():
            port.wake()
        self._wake_credit_waiters()
        self.kernel.wake_all(self)

    def close(self) -> None:
        """Cancels, and waits until the activities have ended."""
        self.cancel(Cancelled("closed"))
        self.kernel.leave(self)

    def die(self) -> None:
        """Called by the kernel: nothing of this node may run any more."""
        self._reason = Cancelled("killed")

    def put(self, port: str, message: Message) -> None:
        """Called by the kernel: a message has arrived."""
        if not self._gone or message.sender not in self._gone:
            queue = self._ports.get(port) or self._port(port)
            queue.queue.append(message)
            if queue.waiters:
                queue.wake()

    def tell_lost(self, who: Address) -> None:
        """Called by the kernel: a peer's connections have ended."""
        self._notify(ConnectionLost(who), lambda port: port.lost)

    def _tell_rejected(self, rejected: Rejected) -> None:
        self._notify(rejected, lambda port: port.members or port.lost)

    def coordinator_lost(self) -> None:
        """Called by the kernel: the coordinator's connection has ended."""
        self._gone.add(COORDINATOR)
        for (to, _), channel in self._channels.items():
            if to == COORDINATOR:
                channel.unreleased = 0
        self._wake_credit_waiters()
        for port in self._ports.values():
            port.wake()

    def coordinator_back(self) -> None:
        """Called by the kernel: the coordinator can be reached."""
        self._gone.discard(COORDINATOR)
        self._notify(CoordinatorFound(), lambda port: port.members)

    def may_set_aside(self) -> None:
        """Lets others run first, if the schedule says so."""
        if self.kernel.scheduler.sets_aside():
            waiter = self.kernel.waiter()
            waiter.wake()
            self.kernel.park()

    def _enter(self) -> None:
        if self._reason is not None:
            self._raise_if_cancelled()
        if self.kernel.may_switch:
            check_may_block()
            self.may_set_aside()
            self._raise_if_cancelled()

    def _notify(self, body: Body, wanted: Callable[[_Port], bool]) -> None:
        for port in self._ports.values():
            if wanted(port):
                port.queue.append(Message(self.address, body))
            port.wake()
        self._wake_credit_waiters()

    def _give_credit(self, channel: Channel) -> None:
        if self.is_up and channel.unreleased:
            channel.unreleased -= 1
            if not channel.unreleased and channel.is_passing:
                del self._channels[channel.receiver.address, channel.port]
        if self._credit_waiters:
            self._wake_credit_waiters()

    def _wake_credit_waiters(self) -> None:
        waiters, self._credit_waiters = self._credit_waiters, []
        for waiter in waiters:
            waiter.wake()

    def _port(self, name: str) -> _Port:
        port = self._ports.get(name)
        if port is None:
            port = self._ports[name] = _Port()
        return port

    def _raise_if_cancelled(self) -> None:
        if self._reason is not None:
            raise Cancelled(str(self._reason)) from self._reason
