"""Who a message is from and for."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, SupportsIndex

_FORM = re.compile(r"([a-z]+)-(\d+)\.(\d+)#(\d+)")


class Address(NamedTuple):
    """One part of one learner (or of another role) in one of its incarnations.

    A learner that was declared dead comes back as the next ``incarnation``: another address, so
    that nobody takes the newcomer for the one whose conversation broke off. Addresses sort by
    role, number, part: this is the members' order wherever an order is promised.
    """

    role: str
    number: int = 0
    part: int = 0
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.role}-{self.number}.{self.part}#{self.incarnation}"

    @property
    def name(self) -> str:
        """The name for people: ``learner 3``."""
        return self.role if self.role == "coordinator" else f"{self.role} {self.number}"

    @property
    def serves(self) -> bool:
        """Whether it holds shards of the model, and trains nothing."""
        return self.role == "server"

    def next_incarnation(self) -> Address:
        return self._replace(incarnation=self.incarnation + 1)

    @staticmethod
    @lru_cache(maxsize=65536)
    def parse(text: str) -> Address:
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"not an address: {text!r}")
        role, number, part, incarnation = match.groups()
        return Address(role, int(number), int(part), int(incarnation))


class Addresses(tuple[Address, ...]):
    """Different addresses, sorted; whether and where one is in it takes no search."""

    def __new__(cls, addresses: Iterable[Address] = ()) -> Addresses:
        return super().__new__(cls, sorted(addresses))

    @cached_property
    def servers(self) -> Addresses:
        """Those that hold shards, and train nothing."""
        first = bisect_left(self, Address("server"))  # without any, no search through all
        return Addresses(address for address in self[first:] if address.serves)

    @cached_property
    def learners(self) -> Addresses:
        """Those that train."""
        return Addresses(a for a in self if not a.serves) if self.servers else self

    @cached_property
    def _places(self) -> dict[Address, int]:
        return {address: place for place, address in enumerate(self)}

    def __contains__(self, address: object) -> bool:
        return address in self._places

    def changed(self, joined: Iterable[Address], gone: Iterable[Address]) -> Addresses:
        """With some more and without some, as far as they are in it; each is in it once."""
        found = list(self)
        joined = list(joined)
        for address in (*gone, *joined):
            place = bisect_left(found, address)
            if place < len(found) and found[place] == address:
                del found[place]
        for address in joined:
            insort(found, address)
        return super().__new__(type(self), found)

    def index(self, address: Any, *bounds: SupportsIndex) -> int:
        """The place of an address; raises ``ValueError`` if it is not in it."""
        try:
            return self._places[address]
        except KeyError:
            raise ValueError(f"{address} is not among them") from None


COORDINATOR = Address("coordinator")


def learner(number: int, incarnation: int = 0) -> Address:
    """The address of a learner that is one process."""
    return Address("learner", number, 0, incarnation)


def server(number: int, incarnation: int = 0) -> Address:
    """The address of a server; learners and servers of a run have different numbers."""
    return Address("server", number, 0, incarnation)
