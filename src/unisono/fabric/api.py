"""The fabric's interface, on which strategies and coordinator are written."""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, overload

from typing_extensions import TypeVar

from unisono.fabric.address import COORDINATOR, Address, Addresses
from unisono.fabric.codec import (
    JSON,
    Malformed,
    TypedPort,
    encode_message,
    is_fixed,
    is_message,
    size_of_message,
)
from unisono.fabric.vector import Vector

CREDIT = 8
"""Messages that one sender may have unconsumed at one port before its next ``send`` waits."""

BODY_LIMIT = 128 * 1024
"""Bytes of one message's body on the wire, at most; larger data belong in a vector."""

VECTOR_LIMIT = 1 << 30
"""Bytes of the longest vector that is accepted by default."""

Body = Any
"""A message: a dataclass, or plain data."""
PortName = str | TypedPort[Any]
"""A port, by name alone where its messages are plain data."""
_log = logging.getLogger(__name__)
T = TypeVar("T")
B = TypeVar("B", default=Any)


class Gone(Exception):  # noqa: N818  (a fact, not an error)
    """The member was declared dead or has left, and its last message has been received."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"{address.name} is gone")
        self.address = address


class Cancelled(Exception):  # noqa: N818
    """This node's part in the run is over: every blocking call of its activities ends with this."""


class TimedOut(Exception):  # noqa: N818
    """``receive`` had a timeout, and it passed."""


class Full(Exception):  # noqa: N818
    """``send`` was asked not to wait, and there is no credit."""


class Member(NamedTuple):
    """A member and its endpoint."""

    address: Address
    endpoint: str


@dataclass(slots=True)
class Traffic:
    """What a node has sent to one receiver."""

    bytes: int = 0
    """Of vectors."""
    seconds: float = 0.0
    """During which some of them were on their way over a network; 0 where there is none."""
    carrying_since: float | None = None
    """While some are: since when, by the clock of ``now``; not yet in ``seconds``."""


@dataclass(frozen=True)
class View:
    """The members, by the coordinator's last message."""

    version: int = 0
    members: tuple[Member, ...] = ()

    @cached_property
    def _addresses(self) -> Addresses:
        return Addresses(m.address for m in self.members if m.address != COORDINATOR)

    @cached_property
    def _sorted(self) -> tuple[Member, ...]:
        return tuple(sorted(self.members))

    @cached_property
    def _memory(self) -> _ViewMemory:
        return _ViewMemory()

    def addresses(self) -> Addresses:
        """The learners and servers, in the members' order."""
        return self._addresses

    def shared(self) -> View:
        """An equal view, the same for all nodes of this process that ask for it."""
        known = _views.setdefault(self.version, self)
        return known if known == self else self

    def after(self, version: int, joined: tuple[Member, ...], gone: tuple[Address, ...]) -> View:
        """The view of a later version: with those who have joined, without those who are gone.

        It is made once for all nodes of this process that share this one.
        """
        change = version, joined, gone
        following = self._memory.following() if self._memory.following else None
        if following is None or following._memory.change != change:
            following = View(version, _changed(self._sorted, joined, gone))
            new = [m.address for m in joined if m.address != COORDINATOR]
            # Both are in order: sorting them anew would make N joins cost N x N comparisons.
            vars(following)["_sorted"] = following.members
            vars(following)["_addresses"] = self._addresses.changed(new, gone)
            following._memory.before, following._memory.change = weakref.ref(self), change
            self._memory.following = weakref.ref(following)
        return following

    def notice(self, before: View) -> MembersChanged:
        """What has changed since an earlier one."""
        if before.members:
            gone, joined = self.changes_since(before)
            return MembersChanged(self.version, gone, tuple(m.address for m in joined))
        if self._memory.joined is None:
            self._memory.joined = tuple(member.address for member in self._sorted)
        return MembersChanged(self.version, (), self._memory.joined)

    def changes_since(self, before: View) -> tuple[tuple[Address, ...], tuple[Member, ...]]:
        """Who is gone and who has joined since an earlier one, each sorted."""
        if self._memory.before is not None and self._memory.before() is before:
            assert self._memory.change is not None
            _, joined, gone = self._memory.change
            return tuple(sorted(gone)), tuple(sorted(joined))
        if not before.members:
            return (), self._sorted
        then = {member.address for member in before.members}
        now = {member.address for member in self.members}
        joined = tuple(sorted(m for m in self.members if m.address not in then))
        return tuple(sorted(then - now)), joined


def _changed(
    members: tuple[Member, ...], joined: tuple[Member, ...], gone: tuple[Address, ...]
) -> tuple[Member, ...]:
    """Sorted members, with some more and without some; one that joins again replaces itself."""
    found = list(members)
    for address in (*gone, *(member.address for member in joined)):
        place = bisect_left(found, (address,))
        if place < len(found) and found[place].address == address:
            del found[place]
    for member in joined:
        insort(found, member)
    return tuple(found)


class _ViewMemory:
    """The views before and after one, as long as somebody has them, and what was changed."""

    __slots__ = ("before", "change", "following", "joined")

    def __init__(self) -> None:
        self.before: weakref.ref[View] | None = None
        self.change: tuple[int, tuple[Member, ...], tuple[Address, ...]] | None = None
        self.following: weakref.ref[View] | None = None
        self.joined: tuple[Address, ...] | None = None
        """All of it, for those who know no view before it."""


_views: weakref.WeakValueDictionary[int, View] = weakref.WeakValueDictionary()
"""One of each version that somebody has."""


@dataclass(frozen=True)
class MembersChanged:
    """A notice of the fabric: there is a new view, and members that are gone send no more."""

    version: int
    gone: tuple[Address, ...]
    joined: tuple[Address, ...]


@dataclass(frozen=True)
class CoordinatorFound:
    """A notice of the fabric: the coordinator can be reached, for the first time or again."""


@dataclass(frozen=True)
class ConnectionLost:
    """A notice of the fabric: the connection of a peer has ended."""

    who: Address


@dataclass(frozen=True)
class Rejected:
    """A notice of the fabric: a peer has sent something malformed, which was dropped."""

    who: Address
    why: str


@dataclass(slots=True)
class Message(Generic[B]):
    """A received message. Its vector is borrowed until ``release``."""

    sender: Address
    body: B
    vector: Vector | None = None
    on_release: Callable[[], None] | None = field(default=None, repr=False)

    def release(self) -> None:
        """Gives the vector's memory (and the sender's credit) back; the vector is void then."""
        callback, self.on_release, self.vector = self.on_release, None, None
        if callback is not None:
            callback()


_last_encoded: tuple[Body, bytes] = (None, b"")
_last_sized: tuple[Body, int] = (None, 0)


def encode(body: Body) -> bytes:
    """The body as it travels; refuses what is not plain data or is too large.

    A message that goes to many one after the other is encoded once.
    """
    global _last_encoded
    last, data = _last_encoded
    if body is last and body is not None:
        return data
    plain = encode_message(body) if is_message(body) else body
    data = JSON.encode(plain).encode()
    _check_size(len(data))
    if is_message(body) and is_fixed(type(body)):
        _last_encoded = body, data
    return data


def encoded_size(body: Body) -> int:
    """The bytes of ``encode``, for a dataclass that nobody changes; nothing is encoded."""
    global _last_sized
    last, nbytes = _last_sized
    if body is not last:
        nbytes = size_of_message(body)
        _check_size(nbytes)
        _last_sized = body, nbytes
    return nbytes


def _check_size(nbytes: int) -> None:
    if nbytes > BODY_LIMIT:
        raise ValueError(f"a message body of {nbytes} bytes; at most {BODY_LIMIT}")


def name_of(port: PortName) -> str:
    """The name of a port."""
    return port if isinstance(port, str) else port.name


class Screen:
    """Decodes the messages of typed ports, and drops malformed ones.

    The first malformed message of a sender is told, in one line and to ``tell``.
    """

    def __init__(self, tell: Callable[[Rejected], None]) -> None:
        self._tell = tell
        self._rejected: set[Address] = set()

    def passes(self, port: PortName, message: Message[Any]) -> bool:
        """Whether the message may be received; its body is read then."""
        if isinstance(port, str):
            return True
        try:
            message.body = port.read(message.body)
        except Malformed as error:
            message.release()
            self._reject(message.sender, f"port {port.name}: {error}")
            return False
        return True

    def _reject(self, sender: Address, why: str) -> None:
        if sender not in self._rejected:
            self._rejected.add(sender)
            _log.warning("unisono: dropped %s, which sent a malformed message: %s", sender, why)
            self._tell(Rejected(sender, why))


class Fabric(Protocol):
    """One node: the messages, activities and clock of one address.

    All calls block plainly. A port opened with ``members`` also receives, as messages from the
    node itself, ``MembersChanged`` when the view changes, ``CoordinatorFound`` when the coordinator
    can be reached (again), and ``Rejected`` when somebody sent a malformed message to a typed port;
    one opened with ``lost`` receives ``ConnectionLost`` and ``Rejected``.
    """

    @property
    def address(self) -> Address:
        """Who this node is."""

    @property
    def endpoint(self) -> str:
        """Where other nodes reach this one."""

    def now(self) -> float:
        """Seconds on a clock that only moves forward."""

    def sleep(self, seconds: float) -> None:
        """Blocks this activity."""

    def lock(self) -> AbstractContextManager[Any]:
        """A lock between activities of this process, never between processes."""

    def members(self) -> View:
        """The current view."""

    def set_members(self, view: View) -> None:
        """Sets a new view; members that are no longer in it are gone for good."""

    def spawn(self, name: str, activity: Callable[[], None]) -> None:
        """Starts an activity beside this one; an exception in it cancels the node."""

    def port(self, port: PortName, *, members: bool = False, lost: bool = False) -> None:
        """Opens a port; messages that came before wait in it."""

    # A message to oneself, which comes as it is; never blocks.

    @overload
    def post(self, port: TypedPort[B], body: B) -> None: ...
    @overload
    def post(self, port: str, body: Body) -> None: ...

    def meet(self, member: Member) -> None:
        """Sets the endpoint of somebody that is not in the view (yet, or any more)."""

    # Sends; waits for credit, or raises ``Full`` without ``wait``. Raises ``Gone`` for a member
    # that is known to be gone. A message to one who is dead but not declared so is lost: whoever
    # waits for the answer is woken by the declaration.

    @overload
    def send(
        self,
        to: Address,
        port: TypedPort[B],
        body: B,
        vector: Vector | None = None,
        *,
        wait: bool = True,
    ) -> None: ...
    @overload
    def send(
        self, to: Address, port: str, body: Body, vector: Vector | None = None, *, wait: bool = True
    ) -> None: ...

    # The next message, of anyone or of one sender (then ``Gone`` if it is gone).

    @overload
    def receive(
        self, port: TypedPort[B], from_: Address | None = None, timeout: float | None = None
    ) -> Message[B]: ...
    @overload
    def receive(
        self, port: str, from_: Address | None = None, timeout: float | None = None
    ) -> Message[Any]: ...

    def compute(self, work: Callable[[], T], cost: float) -> T:
        """Runs ``work``; in simulation it takes ``cost`` seconds."""

    def limit_vectors(self, nbytes: int) -> None:
        """From now on, whoever sends a longer vector to this node ends its own session."""

    def keep_random_state(self) -> None:
        """From now on this node has random generators of its own, whoever runs in between."""

    def cancel(self, reason: BaseException) -> None:
        """Ends every blocking call of this node, now and later, with ``Cancelled``."""

    def close(self) -> None:
        """Cancels, waits for the activities, and releases all resources."""

    @property
    def traffic(self) -> Mapping[Address, Traffic]:
        """What this node has sent, by receiver."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of vectors that this node has sent."""
