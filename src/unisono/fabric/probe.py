"""How fast a link is, measured with the messages that training uses."""

from __future__ import annotations

import time
from dataclasses import dataclass

from unisono.fabric.address import Address
from unisono.fabric.base import Cancelled, Fabric
from unisono.fabric.vector import TensorVector

ECHO = "echo"
ANSWER = "answer"
_PINGS = 50
_VECTORS = 4
_FLOATS = 2**20


@dataclass(frozen=True)
class Link:
    """What was measured between two members."""

    latency_s: float
    """Seconds of a short message and its answer, the median."""
    bytes_per_s: float
    """Of vectors of 4 MB, one way, the best of a few."""


def echo(fabric: Fabric) -> None:
    """An activity: answers whoever probes, until its node is closed."""
    fabric.port(ECHO)
    while True:
        try:
            message = fabric.receive(ECHO)
            sender = message.sender
            message.release()
            fabric.send(sender, ANSWER, {})
        except Cancelled:
            return


def probe(fabric: Fabric, peer: Address) -> Link:
    """Measures the link to a member that runs ``echo``."""
    fabric.port(ANSWER)
    _ask(fabric, peer, None)  # the connection is made with the first one
    short = sorted(_ask(fabric, peer, None) for _ in range(_PINGS))
    latency = short[len(short) // 2]
    vector = TensorVector.zeros(_FLOATS)
    long = min(_ask(fabric, peer, vector) for _ in range(_VECTORS))
    return Link(latency, vector.nbytes / max(long - latency, 1e-9))


def wall_clock() -> float:
    """Seconds of the clock on the wall, which machines may disagree about."""
    return time.time()


def _ask(fabric: Fabric, peer: Address, vector: TensorVector | None) -> float:
    """Seconds until the answer is there."""
    began = fabric.now()
    fabric.send(peer, ECHO, {}, vector)
    fabric.receive(ANSWER, from_=peer).release()
    return fabric.now() - began
