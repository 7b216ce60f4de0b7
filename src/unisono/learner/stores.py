"""The store that ranks meet in."""

from __future__ import annotations

import atexit
import json
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from unisono.errors import UserError
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.endpoints import SocketAddress, addresses, first_reached, resolve
from unisono.learner.mpi import broadcast
from unisono.learner.placement import CREDENTIALS, INTERFACE
from unisono.learner.ranks import Rank

PATIENCE = timedelta(seconds=300)
_CONNECT_S = 5.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class MeetingStore:
    """A store, and what a rank knows besides."""

    store: Store
    place: SocketAddress | None = None
    """Where this rank reaches it; None: it is a file of this machine, or of this process."""
    credentials: str = ""
    """Those that all ranks have; empty: rank 0 makes them, and tells them through the store."""


def find_store(rank: Rank, interface: str) -> MeetingStore:
    """The store of these ranks.

    Args:
        rank: this process.
        interface: the address of this machine that the others shall reach; empty: any.

    Raises:
        UserError: the ranks do not reach each other.
    """
    return _by_mpi(rank, interface) if rank.meets_by_mpi else _by_name(rank)


def _by_name(rank: Rank) -> MeetingStore:
    """At MASTER_ADDR and MASTER_PORT."""
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        store, _, _ = next(iter(rendezvous("env://", rank.number, rank.count, timeout=PATIENCE)))
        place = None if rank.one_machine else resolve(host, int(port))
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"rank {rank.number} does not reach the others at {host}:{port} ({reason})"
        ) from None
    return MeetingStore(store, place, os.environ.get(CREDENTIALS, ""))


@cache  # MPI is initialised once in a process, and each Learner of the process meets anew
def _by_mpi(rank: Rank, interface: str) -> MeetingStore:
    """Rank 0 has the store; MPI tells the others where it is, and the run's credentials."""
    if rank.number > 0:
        offer = json.loads(broadcast(rank, ""))
        place = None if "file" in offer else _reach(rank, offer["places"])
        store = _open_file(offer["file"]) if place is None else _connect(place)
        return MeetingStore(store, place, offer["credentials"])
    secret = os.environ.get(CREDENTIALS) or make_credentials()
    offer = {"credentials": secret}
    if rank.one_machine:  # nothing listens on a network
        folder = tempfile.mkdtemp(prefix="unisono-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        offer["file"] = str(Path(folder, "store"))
        store = _open_file(offer["file"])
    else:
        store = TCPStore(_LOOPBACK, 0, None, True, PATIENCE, wait_for_workers=False)
        offered = [interface] if interface else addresses() or [_LOOPBACK]
        offer["places"] = [str(SocketAddress(address, store.port)) for address in offered]
    broadcast(rank, json.dumps(offer))
    return MeetingStore(store, None, secret)


def _open_file(path: str) -> Store:
    store = FileStore(path, -1)
    store.set_timeout(PATIENCE)
    return store


def _connect(place: SocketAddress) -> Store:
    return TCPStore(place.address, place.port, None, False, PATIENCE, wait_for_workers=False)


def _reach(rank: Rank, offered: list[str]) -> SocketAddress:
    place = first_reached([SocketAddress.parse(text) for text in offered], _CONNECT_S)
    if place is None:
        raise UserError(
            f"rank {rank.number} on {platform.node()} does not reach rank 0 at "
            f"{' or '.join(offered)}: name the interface to use (links.interface, {INTERFACE})"
        )
    return place
