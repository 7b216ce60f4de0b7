"""State that a newcomer gets from a living learner."""

from __future__ import annotations

from unisono.fabric import Address, Fabric
from unisono.strategies.base import Parcel

PORT = "welcome"


def send_parcel(fabric: Fabric, to: Address, parcel: Parcel) -> None:
    """Sends plain values, then the vectors one by one."""
    fabric.send(to, PORT, {"plain": parcel.plain, "vectors": list(parcel.vectors)})
    for name, vector in parcel.vectors.items():
        fabric.send(to, PORT, {"vector": name}, vector)


def receive_parcel(fabric: Fabric, from_: Address) -> Parcel:
    """The inverse."""
    head = fabric.receive(PORT, from_)
    parcel = Parcel(plain=dict(head.body["plain"]))
    for name in head.body["vectors"]:
        message = fabric.receive(PORT, from_)
        assert message.vector is not None and message.body["vector"] == name
        parcel.vectors[name] = message.vector.copy()
        message.release()
    return parcel
