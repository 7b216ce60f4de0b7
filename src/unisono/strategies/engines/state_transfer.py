"""State that a newcomer gets from a living learner."""

from __future__ import annotations

from unisono.fabric import Address, Fabric
from unisono.strategies.base import StateBundle

PORT = "welcome"


def send_bundle(fabric: Fabric, to: Address, bundle: StateBundle) -> None:
    """Sends plain values, then the vectors one by one."""
    fabric.send(to, PORT, {"plain": bundle.plain, "vectors": list(bundle.vectors)})
    for name, vector in bundle.vectors.items():
        fabric.send(to, PORT, {"vector": name}, vector)


def receive_bundle(fabric: Fabric, from_: Address) -> StateBundle:
    """The inverse."""
    head = fabric.receive(PORT, from_)
    bundle = StateBundle(plain=dict(head.body["plain"]))
    for name in head.body["vectors"]:
        message = fabric.receive(PORT, from_)
        assert message.vector is not None and message.body["vector"] == name
        bundle.vectors[name] = message.vector.copy()
        message.release()
    return bundle
