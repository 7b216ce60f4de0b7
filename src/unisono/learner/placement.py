"""Where a learner runs: as a single process, one process of several, or in a simulation."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from unisono.config import LinksConfig
from unisono.coordinator.directives import CheckpointWritten
from unisono.coordinator.journal import NoJournal
from unisono.coordinator.requests import Requests
from unisono.coordinator.service import Service, serve
from unisono.errors import UserError
from unisono.fabric import COORDINATOR, Address, Fabric, learner, server
from unisono.fabric.limits import require_files
from unisono.fabric.local.host import Host
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.learner.checkpoint_files import commit, give_up
from unisono.learner.log import open_metrics
from unisono.output import tell

DIRECTORY = "UNISONO_DIRECTORY"
LEARNER = "UNISONO_LEARNER"
LEARNERS = "UNISONO_LEARNERS"
SERVES = "UNISONO_SERVES"
"""Set for a server."""
TIMEOUT = "UNISONO_TIMEOUT"
COORDINATOR_AT = "UNISONO_COORDINATOR"
CREDENTIALS = "UNISONO_CREDENTIALS"
INTERFACE = "UNISONO_INTERFACE"
COORDINATOR_SOCKET = "coordinator.sock"
ENDPOINT = "endpoint"
"""The file in which the coordinator keeps its endpoint over a restart."""
_NEVER_S = 1e7
"""A single process is never presumed dead: pausing it pauses its coordinator, too."""


def stacks_file(directory: Path, number: int) -> Path:
    """The file to which a learner on this machine writes its stacks when asked to."""
    return directory / f"stacks-{number}.txt"


def link_environment(links: LinksConfig) -> dict[str, str]:
    """Environment variables with the link settings, for a process on another machine."""
    return {INTERFACE: links.interface} if links.interface else {}


def commit_checkpoint(written: CheckpointWritten) -> None:
    """Completes a checkpoint of which all parts are written, or gives it up."""
    if written.error:
        give_up(Path(written.folder), written.error)
        return
    pool = {"committed": written.committed, "sync_round": written.next_round}
    commit(Path(written.folder), pool, written.keep)


class Placement(Protocol):
    """Which learner this is, and how it gets its node."""

    number: int
    """Which learner this is."""
    learners: int
    """How many the run begins with."""
    timeout: float
    """Seconds after which a silent learner is presumed dead."""
    host: str
    """The name of the machine."""

    @property
    def serves(self) -> bool:
        """Whether it is a server: it holds shards, and trains nothing."""
        ...

    @property
    def cost(self) -> float:
        """Seconds that the next minibatch takes in simulation."""

    def node(self, address: Address) -> Fabric:
        """A node for this learner, in this incarnation."""

    def close(self) -> None:
        """Gives everything back."""


@dataclass
class SingleProcess:
    """Plain ``python train.py``: one learner, and the coordinator in the same process."""

    number: int = 0
    learners: int = 1
    timeout: float = 60.0
    cost: float = 0.0
    serves: bool = False
    sink: Callable[[dict[str, Any]], None] | None = None
    requests: Requests | None = None
    began: float | None = None
    """The monotonic time at which the events' clock is 0; None: when the node is made."""
    host: str = field(default_factory=platform.node)
    service: Service | None = field(default=None, init=False)
    _host: Host | None = field(default=None, init=False)

    def node(self, address: Address) -> Fabric:
        require_files(self.learners)
        host = self._host = Host()
        coordinator = host.node(COORDINATOR)
        service = Service(
            coordinator,
            NoJournal(),
            expected=1,
            timeout=_NEVER_S,
            sink=self.sink,
            open_sink=open_metrics,
            on_checkpoint=commit_checkpoint,
            began=self.began,
            requests=self.requests,
        )
        self.service = service
        node = host.node(address)

        def work() -> None:
            try:
                serve(service)
            except Exception as error:
                # Otherwise the learner would wait for an answer for ever.
                node.cancel(error)

        coordinator.spawn("serve", work)
        return node

    def close(self) -> None:
        """Ends the coordinator, too."""
        if self._host is not None:
            self._host.close()
            self._host = None


@dataclass
class LaunchedProcess:
    """One of several processes of a run, started by ``unisono`` or by another launcher.

    It reaches processes of this machine by sockets in ``directory``, and those of others by
    ``network``. ``coordinator`` is its endpoint, unless that is a socket in the directory.
    """

    directory: Path | None
    number: int
    learners: int
    timeout: float
    cost: float = 0.0
    network: NetworkSettings | None = None
    coordinator: str = ""
    serves: bool = False
    host: str = field(default_factory=platform.node)
    _host: Host | None = field(default=None, init=False)

    @classmethod
    def from_environment(cls) -> LaunchedProcess | None:
        """The placement that the launcher has set; None if there is no launcher."""
        given = os.environ
        if DIRECTORY not in given and COORDINATOR_AT not in given:
            return None
        network, coordinator = None, given.get(COORDINATOR_AT, "")
        if coordinator:
            network = NetworkSettings.towards(
                coordinator, given.get(CREDENTIALS, ""), given.get(INTERFACE, "")
            )
        return cls(
            Path(given[DIRECTORY]) if DIRECTORY in given else None,
            int(given[LEARNER]),
            int(given[LEARNERS]),
            float(given[TIMEOUT]),
            network=network,
            coordinator=coordinator,
            serves=SERVES in given,
        )

    def node(self, address: Address) -> Fabric:
        """A node of this process, which listens from the first one on."""
        if self.directory is not None:
            coordinator = self.coordinator or f"unix:{self.directory / COORDINATOR_SOCKET}"
        else:
            coordinator = self.coordinator
        if self._host is None:
            if (coordinator, self.number) in _lived:
                raise UserError(
                    "a run has one Learner a process: put all epochs into one draw(), or start "
                    "another run for what comes after"
                )
            _lived.add((coordinator, self.number))
            require_files(self.learners)
            network = self.network
            if network is not None:
                # The dead must be declared so before they count as unreachable.
                network = replace(network, patience=max(network.patience, 3 * self.timeout))
            self._host = Host(self.directory, network=network)
            if network is not None:
                where = network.describe()
                tell(f"learner {self.number} listens on {where}")
        return self._host.node(address, coordinator)

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None


_lived: set[tuple[str, int]] = set()
"""The runs that this process has taken part in: their coordinators and its number."""

_placement: ContextVar[Placement | None] = ContextVar("unisono_placement", default=None)


@contextmanager
def at_placement(placement: Placement) -> Iterator[None]:
    """Learners that are made inside get this placement."""
    token = _placement.set(placement)
    try:
        yield
    finally:
        _placement.reset(token)


def find_placement() -> Placement:
    """The placement of a new learner.

    Raises:
        UserError: another launcher has started this process, and the learners cannot meet.
    """
    return (
        _placement.get() or LaunchedProcess.from_environment() or _of_launcher() or SingleProcess()
    )


def _of_launcher() -> Placement | None:
    # These import this module.
    from unisono.learner.rank_placement import OfLauncher
    from unisono.learner.ranks import Rank

    rank = Rank.from_environment()
    if rank is None:
        return None
    rank.check()
    return OfLauncher(rank)


def address_at(placement: Placement, incarnation: int = 0) -> Address:
    """The member's address in one of its incarnations."""
    return (server if placement.serves else learner)(placement.number, incarnation)
