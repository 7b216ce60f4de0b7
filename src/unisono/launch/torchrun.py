"""``torchrun ... -m unisono train``: the processes that torchrun started are the learners.

Their number is fixed: torchrun ends all of a machine's processes when one of them dies, so one
death ends the run, and ``--resume`` goes on. Rank 0 holds the coordinator, in a process of its own.
Where that is, and the run's credentials, the others learn through torchrun's store.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed.rendezvous import rendezvous

from unisono.config import Config
from unisono.coordinator.client import Abandoned
from unisono.errors import UserError
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.endpoints import SocketAddress, address_of, resolve, route_to
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.launch.coordinator_main import ENDPOINT, read_outcome
from unisono.learner.placement import (
    CREDENTIALS,
    INTERFACE,
    LaunchedProcess,
    at_placement,
    link_environment,
)
from unisono.runs.directory import RunDirectory
from unisono.runs.summary import Summary
from unisono.training.train import check, conclude, made
from unisono.training.worker import Worker

_COORDINATOR = "coordinator"
_PATIENCE = timedelta(seconds=300)
_TURN = timedelta(seconds=1)
_GRACE_S = 10.0


@dataclass(frozen=True)
class Rank:
    """What torchrun tells a process of itself."""

    number: int
    count: int
    local_number: int
    local_count: int

    @classmethod
    def from_environment(cls) -> Rank | None:
        """None if torchrun has not started this process."""
        given = os.environ
        if "TORCHELASTIC_RUN_ID" not in given:
            return None
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return cls(*[int(given[name]) for name in names])

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.local_count == self.count


def train_as_rank(rank: Rank, config: Config, out: Path, *, resume: bool = False) -> Summary | None:
    """Trains as one of torchrun's processes; rank 0 has the summary.

    Raises:
        UserError: bad input, or a run that failed.
    """
    signal.signal(signal.SIGTERM, _leave)
    if config.learner_range != (rank.count, rank.count):
        raise UserError(f"torchrun has started {rank.count} processes: leave --learners out")
    interface = os.environ.get(INTERFACE) or config.links.interface
    meeting = _Meeting(rank, interface)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        if rank.number == 0:
            return _lead(rank, config, out, resume, meeting, Path(folder))
        _follow(rank, meeting.hear(), config, Path(folder), resume)
        return None


def _leave(number: int, frame: object) -> None:
    sys.exit("unisono: torchrun has ended this process; go on from a checkpoint with --resume")


def _lead(
    rank: Rank, config: Config, out: Path, resume: bool, meeting: _Meeting, folder: Path
) -> Summary:
    with ExitStack() as stack:
        try:
            check(config)
            run = stack.enter_context(made(out, config, resume=resume))
        except UserError as error:
            meeting.tell({"error": str(error)})
            raise
        outcome = _train(rank, run, config, resume, meeting, folder)
    return conclude(run, config, outcome)


def _train(
    rank: Rank,
    run: RunDirectory,
    config: Config,
    resume: bool,
    meeting: _Meeting,
    folder: Path,
) -> dict[str, Any]:
    """Holds the coordinator, and trains as rank 0; what the coordinator knows at the end."""
    children = ChildProcesses()
    try:
        secret = os.environ.get(CREDENTIALS) or make_credentials()
        address = "" if rank.one_machine else meeting.address()
        coordinator = _start_coordinator(children, folder, run, config, address, secret)
        if address:
            print(f"coordinator is at {coordinator.split()[0]}", file=sys.stderr, flush=True)
        plan = {"coordinator": coordinator, "credentials": secret, "run": str(run.path.resolve())}
        meeting.tell(plan)
        try:
            _follow(rank, plan, config, folder, resume)
        except Abandoned as abandoned:
            raise UserError(f"the run failed: {abandoned.line}") from None
        children.wait(_GRACE_S)
    finally:
        children.stop(_GRACE_S)
    return read_outcome(folder, rank.count)


def _follow(rank: Rank, plan: dict[str, str], config: Config, folder: Path, resume: bool) -> None:
    """Trains as the learner of this rank."""
    network = None
    if not rank.one_machine:
        interface = os.environ.get(INTERFACE) or config.links.interface
        network = NetworkSettings.towards(plan["coordinator"], plan["credentials"], interface)
    placement = LaunchedProcess(
        folder,
        rank.number,
        rank.count,
        config.timeout_s,
        network=network,
        coordinator=plan["coordinator"],
    )
    worker = Worker(
        RunDirectory.open(Path(plan["run"])),
        resume=resume,
        local_number=rank.local_number,
        local_count=rank.local_count,
    )
    with at_placement(placement):
        worker.run()


def _start_coordinator(
    children: ChildProcesses,
    folder: Path,
    run: RunDirectory,
    config: Config,
    address: str,
    secret: str,
) -> str:
    """Starts it; where it is reached."""
    command = [sys.executable, "-m", "unisono.launch.coordinator_main", str(folder), "--fixed"]
    command += ["--learners", config.learners, "--timeout", str(config.timeout_s)]
    command += ["--metrics", str(run.metrics)]
    if address:
        command += ["--address", address]
    told = {CREDENTIALS: secret, **link_environment(config.links), "OMP_NUM_THREADS": "1"}
    children.start(_COORDINATOR, command, told)
    noted = folder / ENDPOINT
    while not noted.is_file():
        for ended in children.wait(_TURN.total_seconds() / 20):
            raise UserError(f"the coordinator ended with {ended.how}")
    return noted.read_text()


class _Meeting:
    """The ranks of one attempt find each other in torchrun's store.

    The store outlives an attempt, so what an earlier one has left there must not be believed: each
    rank says a word that is new, and is told under that word alone.
    """

    def __init__(self, rank: Rank, interface: str) -> None:
        self._store, _, _ = next(iter(rendezvous("env://", timeout=_PATIENCE)))
        self._rank = rank
        self._interface = address_of(interface) if interface else ""
        self._word = secrets.token_hex(8)
        here = {"word": self._word, "node": os.environ.get("GROUP_RANK", "0")}
        if not rank.one_machine:
            here["address"] = self._interface or route_to(_master())
        self._store.set(f"unisono/here/{rank.number}", json.dumps(here))

    def address(self) -> str:
        """Rank 0: the address that the other machines reach; by the route to one of them."""
        mine = os.environ.get("GROUP_RANK", "0")
        other = next(here for here in self._all() if here["node"] != mine)
        return self._interface or route_to(SocketAddress(other["address"], 1))

    def tell(self, plan: dict[str, str]) -> None:
        """Rank 0: tells all the others, and waits until they have heard it."""
        while True:
            others = [here["word"] for here in self._all()[1:]]
            for word in others:
                self._store.set(f"unisono/plan/{word}", json.dumps(plan))
            try:
                if others:
                    self._store.wait([f"unisono/heard/{word}" for word in others], _TURN)
                return
            except RuntimeError:
                continue  # One of them is of this attempt only now.

    def hear(self) -> dict[str, str]:
        """The other ranks: what rank 0 says."""
        plan: dict[str, str] = json.loads(self._get(f"unisono/plan/{self._word}"))
        self._store.set(f"unisono/heard/{self._word}", "yes")
        if "error" in plan:
            raise UserError(f"rank 0 cannot begin: {plan['error']}")
        return plan

    def _all(self) -> list[dict[str, Any]]:
        return [json.loads(self._get(f"unisono/here/{n}")) for n in range(self._rank.count)]

    def _get(self, key: str) -> bytes:
        try:
            return bytes(self._store.get(key))
        except RuntimeError:
            raise UserError(
                f"rank {self._rank.number} has waited {_PATIENCE.total_seconds():g} s for the "
                "others: see what they say"
            ) from None


def _master() -> SocketAddress:
    return resolve(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
