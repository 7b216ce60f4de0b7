"""How fast a link is, measured with the messages that training uses."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from unisono.fabric.address import Address
from unisono.fabric.api import Cancelled, Fabric
from unisono.fabric.vector import TensorVector

ECHO = "echo"
ANSWER = "answer"
_PINGS = 50
_VECTORS = 4
_FLOATS = 2**20
LIMIT_S = 20.0
"""Seconds for one message and its answer; after that there is no link."""


@dataclass(frozen=True)
class LinkMeasurement:
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


def probe(fabric: Fabric, peer: Address) -> LinkMeasurement:
    """Measures the link to a member that runs ``echo``; ``TimedOut`` if there is none."""
    fabric.port(ANSWER)
    vector = TensorVector.zeros(_FLOATS)
    for warm in (None, vector):  # the connection and its memory are made with the first ones
        _ask(fabric, peer, warm)
    short = sorted(_ask(fabric, peer, None) for _ in range(_PINGS))
    latency = short[len(short) // 2]
    long = min(_ask(fabric, peer, vector) for _ in range(_VECTORS))
    return LinkMeasurement(latency, vector.nbytes / max(long - latency, 1e-9))


def listens(address: str, port: int, seconds: float) -> bool:
    """Whether a connection is taken there."""
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def wall_clock() -> float:
    """Seconds of the clock on the wall, which machines may disagree about."""
    return time.time()


def _ask(fabric: Fabric, peer: Address, vector: TensorVector | None) -> float:
    """Seconds until the answer is there."""
    began = fabric.now()
    fabric.send(peer, ECHO, {}, vector)
    fabric.receive(ANSWER, from_=peer, timeout=LIMIT_S).release()
    return fabric.now() - began
