"""Sends a newcomer the state of a living learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unisono.fabric import Address, Fabric, TypedPort, Vector
from unisono.strategies.base import StateBundle


@dataclass(frozen=True)
class StateHead:
    """A bundle's plain values, and the numbers of its vectors."""

    plain: dict[str, Any]
    vectors: dict[str, int]
    """By name; vectors are numbered over all bundles."""


@dataclass(frozen=True)
class StateVector:
    """One of the vectors, by its number."""

    number: int


PORT: TypedPort[StateHead | StateVector] = TypedPort("welcome", StateHead | StateVector)


def send_state(fabric: Fabric, to: Address, *bundles: StateBundle) -> None:
    """Sends bundles; equal vectors are sent once."""
    sent: list[Vector] = []
    for bundle in bundles:
        known = len(sent)
        places = {name: _place(vector, sent) for name, vector in bundle.vectors.items()}
        fabric.send(to, PORT, StateHead(bundle.plain, places))
        for number in range(known, len(sent)):
            fabric.send(to, PORT, StateVector(number), sent[number])


def receive_state(fabric: Fabric, from_: Address, count: int) -> list[StateBundle]:
    """Receives so many bundles."""
    bundles: list[StateBundle] = []
    received: list[Vector] = []
    for _ in range(count):
        head = fabric.receive(PORT, from_).body
        assert isinstance(head, StateHead)
        while len(received) <= max(head.vectors.values(), default=-1):
            message = fabric.receive(PORT, from_)
            assert message.vector is not None and message.body == StateVector(len(received))
            received.append(message.vector.copy())
            message.release()
        vectors = {name: received[place].copy() for name, place in head.vectors.items()}
        bundles.append(StateBundle(dict(head.plain), vectors))
    return bundles


def _place(vector: Vector, sent: list[Vector]) -> int:
    """The number of a vector among those that are sent, to which a new one is appended."""
    for number, other in enumerate(sent):
        if len(vector) == len(other) and vector.equals(other):
            return number
    sent.append(vector)
    return len(sent) - 1
