"""State that a newcomer gets from a living learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unisono.fabric import Address, Fabric, TypedPort
from unisono.strategies.base import StateBundle


@dataclass(frozen=True)
class StateHead:
    """A bundle's plain values, and the names of the vectors that follow."""

    plain: dict[str, Any]
    vectors: tuple[str, ...]


@dataclass(frozen=True)
class StateVector:
    """One of a bundle's vectors."""

    name: str


PORT: TypedPort[StateHead | StateVector] = TypedPort("welcome", StateHead | StateVector)


def send_bundle(fabric: Fabric, to: Address, bundle: StateBundle) -> None:
    """Sends plain values, then the vectors one by one."""
    fabric.send(to, PORT, StateHead(bundle.plain, tuple(bundle.vectors)))
    for name, vector in bundle.vectors.items():
        fabric.send(to, PORT, StateVector(name), vector)


def receive_bundle(fabric: Fabric, from_: Address) -> StateBundle:
    """The inverse."""
    head = fabric.receive(PORT, from_).body
    assert isinstance(head, StateHead)
    bundle = StateBundle(plain=dict(head.plain))
    for name in head.vectors:
        message = fabric.receive(PORT, from_)
        assert message.vector is not None and message.body == StateVector(name)
        bundle.vectors[name] = message.vector.copy()
        message.release()
    return bundle
