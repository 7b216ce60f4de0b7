"""Processes that another launcher has started: torchrun, accelerate or mpirun.

They are the learners of one run. Their number is fixed: such a launcher ends all processes when one
of them dies, so a death ends the run, and it goes on from a checkpoint. Rank 0 has the coordinator,
in a process of its own. Where that is, and the run's credentials, the others learn through the
store that PyTorch's own process groups begin with (MASTER_ADDR and MASTER_PORT).
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from torch.distributed.rendezvous import rendezvous

from unisono.config import LinksConfig
from unisono.errors import UserError
from unisono.fabric import Address, Fabric
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.endpoints import SocketAddress, address_of, resolve, route_to
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.learner.placement import (
    CREDENTIALS,
    ENDPOINT,
    INTERFACE,
    TIMEOUT,
    LaunchedProcess,
    link_environment,
)

COORDINATE = "unisono.launch.coordinator_main"
"""The coordinator's own program; it is started, not imported."""
GRACE_S = 10.0
_COORDINATOR = "coordinator"
_PATIENCE = timedelta(seconds=300)
_TURN = timedelta(seconds=1)
_DEFAULT_TIMEOUT_S = 10.0
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": tuple(
        f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ),
    "MPI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
"""What each launcher calls rank, number of ranks, and the same on one machine."""
_meetings = count()


@dataclass(frozen=True)
class Rank:
    """What a launcher tells a process of itself."""

    number: int
    count: int
    local_number: int = 0
    local_count: int = 0
    """0: the launcher does not say."""
    launcher: str = "torchrun"

    @classmethod
    def from_environment(cls) -> Rank | None:
        """None if no launcher has started several of this process.

        Raises:
            UserError: the environment makes no sense.
        """
        given = os.environ
        for launcher, names in _LAUNCHERS.items():
            if names[0] not in given or names[1] not in given:
                continue
            try:
                number, size, local, local_size = (int(given.get(name, "0")) for name in names)
            except ValueError:
                raise UserError(f"{names[0]} and {names[1]} must be numbers") from None
            if not 0 <= number < max(size, 1):
                raise UserError(f"{names[0]} is {number}, and {names[1]} only {size}")
            if size > 1:
                return cls(number, size, local, local_size, launcher)
        return None

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.local_count == self.count

    def check(self) -> None:
        """Looks whether the ranks can find each other; only rank 0 says so if they cannot."""
        if all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")):
            return
        if self.number > 0:
            sys.exit(2)
        raise UserError(
            f"{self.launcher} has started {self.count} processes that do not know each other: set "
            "MASTER_ADDR and MASTER_PORT for them (a host and a free port of rank 0), or start the "
            f"script with `unisono launch --learners {self.count}`"
        )


@dataclass
class OfLauncher:
    """A learner in a process of another launcher; see ``unisono.learner.placement.Placement``."""

    rank: Rank
    timeout: float = field(init=False)
    cost: float = 0.0
    host: str = field(default_factory=platform.node)
    _placement: LaunchedProcess | None = field(default=None, init=False)
    _children: ChildProcesses = field(default_factory=ChildProcesses, init=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.number = self.rank.number
        self.learners = self.rank.count
        self.timeout = float(os.environ.get(TIMEOUT, _DEFAULT_TIMEOUT_S))

    def node(self, address: Address) -> Fabric:
        """A node of this process; the ranks meet before the first one."""
        if self._placement is None:
            self._placement = self._meet()
        return self._placement.node(address)

    def _meet(self) -> LaunchedProcess:
        links = LinksConfig(interface=os.environ.get(INTERFACE, ""))
        self._folder = tempfile.TemporaryDirectory(prefix="unisono-")
        folder = Path(self._folder.name)
        meeting = Meeting(self.rank, links.interface)
        if self.rank.number > 0:
            return place_of(self.rank, meeting.hear(), folder, self.timeout, links)
        try:
            plan = lead(self.rank, meeting, self._children, folder, self.timeout, links)
        except UserError as error:
            meeting.tell({"error": str(error)})
            raise
        meeting.tell(plan)
        return place_of(self.rank, plan, folder, self.timeout, links)

    def close(self) -> None:
        """Stops listening; rank 0 stays until the coordinator has seen all others leave."""
        if self._placement is not None:
            self._placement.close()
            self._placement = None
        try:
            while self._children.running:
                self._children.wait()
        finally:
            self._children.stop(GRACE_S)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def lead(
    rank: Rank,
    meeting: Meeting,
    children: ChildProcesses,
    folder: Path,
    timeout: float,
    links: LinksConfig,
    metrics: Path | None = None,
) -> dict[str, str]:
    """Rank 0: starts the coordinator; what the others must know."""
    secret = os.environ.get(CREDENTIALS) or make_credentials()
    address = "" if rank.one_machine else meeting.address()
    command = [sys.executable, "-m", COORDINATE, str(folder), "--fixed"]
    command += ["--learners", str(rank.count), "--timeout", str(timeout)]
    if metrics is not None:
        command += ["--metrics", str(metrics)]
    if address:
        command += ["--address", address]
    told = {CREDENTIALS: secret, **link_environment(links), "OMP_NUM_THREADS": "1"}
    children.start(_COORDINATOR, command, told)
    noted = folder / ENDPOINT
    while not noted.is_file():
        for ended in children.wait(_TURN.total_seconds() / 20):
            raise UserError(f"the coordinator ended with {ended.how}")
    coordinator = noted.read_text()
    if address:
        print(f"coordinator is at {coordinator.split()[0]}", file=sys.stderr, flush=True)
    return {"coordinator": coordinator, "credentials": secret}


def place_of(
    rank: Rank, plan: dict[str, str], folder: Path, timeout: float, links: LinksConfig
) -> LaunchedProcess:
    """Where the learner of a rank is."""
    network = None
    if not rank.one_machine:
        network = NetworkSettings.towards(plan["coordinator"], plan["credentials"], links.interface)
    return LaunchedProcess(
        folder,
        rank.number,
        rank.count,
        timeout,
        network=network,
        coordinator=plan["coordinator"],
    )


class Meeting:
    """The ranks of one attempt find each other in the launcher's store.

    The store outlives an attempt, so what an earlier one has left there must not be believed: each
    rank says a word that is new, and is told under that word alone.
    """

    def __init__(self, rank: Rank, interface: str) -> None:
        rank.check()
        try:
            found = rendezvous("env://", rank.number, rank.count, timeout=_PATIENCE)
            self._store, _, _ = next(iter(found))
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"rank {rank.number} does not reach the others at "
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({reason})"
            ) from None
        self._rank = rank
        self._prefix = f"unisono/{next(_meetings)}"  # each Learner of a process is a run of its own
        self._interface = address_of(interface) if interface else ""
        self._word = secrets.token_hex(8)
        here = {"word": self._word, "node": os.environ.get("GROUP_RANK", "0")}
        if not rank.one_machine:
            here["address"] = self._interface or route_to(_master())
        self._store.set(f"{self._prefix}/here/{rank.number}", json.dumps(here))

    def address(self) -> str:
        """Rank 0: the address that the other machines reach; by the route to one of them."""
        mine = os.environ.get("GROUP_RANK", "0")
        all_here = self._all()
        other = next((here for here in all_here if here["node"] != mine), all_here[-1])
        return self._interface or route_to(SocketAddress(other["address"], 1))

    def tell(self, plan: dict[str, str]) -> None:
        """Rank 0: tells all the others, and waits until they have heard it."""
        while True:
            others = [here["word"] for here in self._all()[1:]]
            for word in others:
                self._store.set(f"{self._prefix}/plan/{word}", json.dumps(plan))
            try:
                if others:
                    self._store.wait([f"{self._prefix}/heard/{word}" for word in others], _TURN)
                return
            except RuntimeError:
                continue  # One of them is of this attempt only now.

    def hear(self) -> dict[str, str]:
        """The other ranks: what rank 0 says."""
        plan: dict[str, str] = json.loads(self._get(f"plan/{self._word}"))
        self._store.set(f"{self._prefix}/heard/{self._word}", "yes")
        if "error" in plan:
            raise UserError(f"rank 0 cannot begin: {plan['error']}")
        return plan

    def _all(self) -> list[dict[str, Any]]:
        return [json.loads(self._get(f"here/{n}")) for n in range(self._rank.count)]

    def _get(self, key: str) -> bytes:
        try:
            return bytes(self._store.get(f"{self._prefix}/{key}"))
        except RuntimeError:
            raise UserError(
                f"rank {self._rank.number} has waited {_PATIENCE.total_seconds():g} s for the "
                "others: see what they say"
            ) from None


def _master() -> SocketAddress:
    return resolve(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
