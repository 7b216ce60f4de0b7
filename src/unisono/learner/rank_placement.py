"""A learner in a process that another launcher has started.

Rank 0 has the coordinator, in a process of its own; the others learn at the meeting where it is.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from unisono.config import LinksConfig
from unisono.errors import UserError
from unisono.fabric import Address, Fabric
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.learner.meeting import Meeting
from unisono.learner.placement import (
    CREDENTIALS,
    ENDPOINT,
    INTERFACE,
    TIMEOUT,
    LaunchedProcess,
    link_environment,
)
from unisono.learner.ranks import Rank
from unisono.output import tell

COORDINATE = "unisono.launch.coordinator_main"
"""The coordinator's own program; it is started, not imported."""
GRACE_S = 10.0
_COORDINATOR = "coordinator"
_LOOK_S = 0.05
_DEFAULT_TIMEOUT_S = 10.0


@dataclass
class OfLauncher:
    """A learner in a process of another launcher; see ``unisono.learner.placement.Placement``."""

    rank: Rank
    timeout: float = field(init=False)
    cost: float = 0.0
    serves: bool = False
    host: str = field(default_factory=platform.node)
    _placement: LaunchedProcess | None = field(default=None, init=False)
    _children: ChildProcesses = field(default_factory=ChildProcesses, init=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.number = self.rank.number
        self.learners = self.rank.count
        self.timeout = float(os.environ.get(TIMEOUT, _DEFAULT_TIMEOUT_S))

    def node(self, address: Address) -> Fabric:
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
    secret = meeting.credentials or make_credentials()
    address = "" if rank.one_machine else meeting.address()
    command = [sys.executable, "-m", COORDINATE, str(folder)]
    command += ["--learners", str(rank.count), "--timeout", str(timeout)]
    command += ["--announce"] if rank.tolerant else ["--fixed"]
    if metrics is not None:
        command += ["--metrics", str(metrics)]
    if address:
        command += ["--address", address]
    told = {CREDENTIALS: secret, **link_environment(links), "OMP_NUM_THREADS": "1"}
    children.start(_COORDINATOR, command, told)
    noted = folder / ENDPOINT
    while not noted.is_file():
        for ended in children.wait(_LOOK_S):
            raise UserError(f"the coordinator ended with {ended.how}")
    coordinator = noted.read_text()
    said = [rank.on_death(), f"coordinator is at {coordinator.split()[0]}" if address else ""]
    tell(*filter(None, said))
    return {"coordinator": coordinator, "credentials": secret}


def place_of(
    rank: Rank, plan: dict[str, str], folder: Path, timeout: float, links: LinksConfig
) -> LaunchedProcess:
    """Where the learner of a rank is."""
    network = None
    if not rank.one_machine:
        network = NetworkSettings.towards(plan["coordinator"], plan["credentials"], links.interface)
    return LaunchedProcess(
        folder, rank.number, rank.count, timeout, network=network, coordinator=plan["coordinator"]
    )
