"""Ray, the engine beyond one machine: found, entered and left again."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unisono.config import DeviceChoice
from unisono.errors import UserError
from unisono.fabric.network.link_probe import listens

NODE_LABEL = "ray.io/node-id"
_REACH_S = 5.0
_NOISE = "|".join(
    [
        "worker died or was killed",
        "Raylet is terminated",
        "has been marked dead",
        "CoordinatorActor.serve failed",
    ]
)
"""What Ray says of a death, at length; the run says it in a line."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    id: str
    host: str
    cores: int
    gpus: int


def load_ray() -> Any:
    """The package, or one line that says how to get it."""
    # Read when it is imported. Lines of different learners are not the same line; and deaths are
    # told by the one who watches, in one line each.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _NOISE)
    os.environ.setdefault("RAY_DEDUP_LOGS_ALLOW_REGEX", f"^(?!.*({_NOISE}))")
    try:
        import ray
    except ImportError:
        raise UserError("--cluster needs Ray: pip install 'unisono[cluster]'") from None
    return ray


@contextmanager
def entered(address: str) -> Iterator[Any]:
    """Connected to the cluster inside; whatever was started in it goes at the end."""
    if address.startswith("ray://"):
        raise UserError("--cluster wants a machine of the cluster, not a Ray client: run it there")
    ray = load_ray()
    # Of itself Ray would try for minutes.
    host, _, port = address.rpartition(":")
    if port.isdigit() and not listens(host, int(port), _REACH_S):
        raise _not_found(address, "nobody listens there")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True)
    except Exception as error:
        text = str(error).strip() or repr(error)
        raise _not_found(address, text.splitlines()[0]) from None
    if callable(on_sigterm):  # Ray puts its own there, which ends without a word
        signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield ray
    finally:
        ray.shutdown()


def _not_found(address: str, reason: str) -> UserError:
    return UserError(
        f"no Ray cluster at {address} ({reason}): start one with `ray start --head`, or give the "
        "token that it asks for (RAY_AUTH_MODE=token); docs/howto/security.md says how"
    )


def living_nodes(ray: Any) -> list[Node]:
    """The machines that are there now."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            room = node["Resources"]
            cores, gpus = int(room.get("CPU", 0)), int(room.get("GPU", 0))
            found.append(Node(node["NodeID"], node["NodeManagerHostname"], cores, gpus))
    return sorted(found, key=lambda node: (node.host, node.id))


def cores_for(nodes: Sequence[Node], learners: int, gpus: int = 0) -> int:
    """The most cores a learner with which so many learners have room on these machines.

    Where each has a GPU of its own: as many as leave room for a learner on every GPU.
    """
    if gpus:
        shares = [node.cores // node.gpus for node in nodes if node.gpus]
        return max(1, min(shares, default=1))
    for cores in range(max((node.cores for node in nodes), default=1), 1, -1):
        if sum(node.cores // cores for node in nodes) >= learners:
            return cores
    return 1


def gpus_for(device: DeviceChoice, nodes: Sequence[Node]) -> int:
    """GPUs a learner: one where that was asked for, or where the cluster has any."""
    found = any(node.gpus for node in nodes)
    if device is DeviceChoice.CUDA and not found:
        raise UserError("device is cuda, but Ray knows of no GPU in the cluster")
    return int(found and device is not DeviceChoice.CPU)
