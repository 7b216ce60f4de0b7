"""What a message costs, and the way that it takes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unisono.fabric.address import Address
from unisono.fabric.api import Message

if TYPE_CHECKING:
    from unisono.fabric.simulated.node import SimulatedNode


class Network(Protocol):
    """What a message costs."""

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way of a message that is sent now; asked once a message, in order."""
        ...

    def sending(self, nbytes: int) -> float:
        """Seconds of the sender's own core."""
        ...


@dataclass(frozen=True)
class SimulatedNetwork:
    """What a message costs: ``latency`` seconds, and its bytes at ``bandwidth`` bytes a second."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def delay(self, sender: Address, receiver: Address, nbytes: int, now: float) -> float:
        """Seconds on the way; messages do not get in each other's way."""
        return self.latency + nbytes / self.bandwidth

    def sending(self, nbytes: int) -> float:
        """None."""
        return 0.0


class Channel:
    """The way from one node to a port of another; messages on it keep their order."""

    __slots__ = ("arrival", "is_passing", "port", "queue", "receiver", "sender", "unreleased")

    def __init__(self, sender: Address, receiver: SimulatedNode, port: str) -> None:
        self.sender = sender
        self.receiver = receiver
        """Who was at that address when something was last sent."""
        self.port = port
        self.queue: deque[tuple[float, Message]] = deque()
        """Messages on their way, with when they arrive."""
        self.arrival = 0.0
        """When the last of them does."""
        self.unreleased = 0
        """Messages for which the sender has no credit back yet."""
        self.is_passing = sender.role == receiver.address.role
        """Between learners: it is forgotten when nothing is on it, as there may be many."""

    @property
    def ends(self) -> tuple[Address, Address]:
        """Sender and receiver."""
        return self.sender, self.receiver.address
