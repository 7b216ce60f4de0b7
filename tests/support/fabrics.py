"""Set-ups for the conformance suite: simulated, threads of one process, and real processes."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from support.conformance.stage import Ability, Case
from support.processes import Parent, Processes
from unisono.fabric import COORDINATOR, Address, Cancelled, Member, View
from unisono.fabric.local.host import Host, LocalNode
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.fabric.simulated import kernel as simulation
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import Scheduler, TimedScheduler

LIMIT = 150.0
"""Real seconds after which a case has hung."""
_PORT = 7311


class Setup(Protocol):
    """Brings the players of a case on; raises if the case fails or does not end."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do to the players."""
        ...

    def run(self, case: Case) -> None:
        """Stages the case once."""
        ...


def _view(members: Iterable[Member]) -> View:
    return View(1, tuple(m for m in members if m.address != COORDINATOR))


@dataclass(frozen=True)
class Homes:
    """Where players are reached: at sockets in a folder, or at places of the loopback network.

    The network has an address for each: a process that is started again finds its place free.
    """

    directory: Path
    credentials: str = ""
    """Of the network; without them there is none."""

    def endpoint(self, address: Address) -> str:
        """Where a player will listen."""
        return str(self._place(address)) if self.credentials else f"unix:{self._path(address)}"

    def host(self, address: Address) -> Host:
        """The player's host, which listens."""
        if not self.credentials:
            return Host(self.directory, self._path(address).name)
        return Host(network=NetworkSettings(self.credentials, *self._place(address)))

    def _path(self, address: Address) -> Path:
        return self.directory / f"{address}.sock"

    def _place(self, address: Address) -> SocketAddress:
        a, b, c = hashlib.sha256(bytes(self._path(address))).digest()[:3]
        return SocketAddress(f"127.{a}.{b}.{max(1, c % 255)}", _PORT)


class Simulated:
    """Greenlets on a virtual clock."""

    abilities = frozenset(Ability)

    def __init__(self, scheduler: Callable[[], Scheduler] = TimedScheduler) -> None:
        self._scheduler = scheduler

    def run(self, case: Case) -> None:
        """Stages the case; ``DeadlockError`` says who waits where."""
        kernel = simulation.Kernel(
            scheduler=self._scheduler(),
            network=simulation.SimulatedNetwork(latency=0.001),
            limit=1e4,
        )
        play = _SimulatedPlay(kernel, case)
        for address in case.players:
            play.start(address)
        kernel.run()


class _SimulatedPlay:
    def __init__(self, kernel: simulation.Kernel, case: Case) -> None:
        self.kernel = kernel
        self.view = _view(Member(address, f"sim:{address}") for address in case.players)
        self._case = case
        self._rejoiner: Counter[Address] = Counter()

    def start(self, address: Address) -> Member:
        node = SimulatedNode(self.kernel, address)
        stage = _SimulatedStage(self, self._rejoiner[address])
        self._rejoiner[address] += 1

        def main() -> None:
            node.set_members(self.view)
            self._case.play(node, stage)
            node.close()

        self.kernel.main(node, main)
        return Member(address, node.endpoint)


class _SimulatedStage:
    """A greenlet may itself do all that the kernel can."""

    def __init__(self, play: _SimulatedPlay, incarnation: int) -> None:
        self.incarnation = incarnation
        self.view = play.view
        self.start = play.start
        self.kill = play.kernel.kill
        self.pause, self.resume = play.kernel.pause, play.kernel.resume
        self.cut, self.heal = play.kernel.cut, play.kernel.heal


class Threads:
    """Threads of this process: all nodes on one host without sockets, or each on its own with."""

    def __init__(self, *, sockets: bool, network: bool = False) -> None:
        self._sockets = sockets or network
        self._credentials = make_credentials() if network else ""
        self.abilities = frozenset([Ability.RETURN] if self._sockets else [])

    def run(self, case: Case) -> None:
        """Stages the case; who hangs is named with its stack."""
        with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
            homes = Homes(Path(folder), self._credentials) if self._sockets else None
            play = _ThreadedPlay(case, homes)
            try:
                play.run()
            finally:
                play.close()


class _ThreadedPlay:
    """Is its players' stage; here a killed player is one that is closed in the middle."""

    def __init__(self, case: Case, homes: Homes | None) -> None:
        self._case = case
        self._homes = homes
        self._alone = Host() if homes is None else None
        self._nodes: dict[Address, tuple[Host, LocalNode]] = {}
        self._threads: list[threading.Thread] = []
        self._rejoiner: Counter[Address] = Counter()
        self._first_error: BaseException | None = None
        self.view = _view(self._make(address) for address in case.players)

    def run(self) -> None:
        self._threads = [self._thread(address) for address in self._case.players]
        for thread in list(self._threads):
            thread.start()
        deadline = time.monotonic() + LIMIT
        while living := [thread for thread in self._threads if thread.is_alive()]:
            living[0].join(max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                self._fail(TimeoutError(_report_hung(living)))
                break
        if self._first_error is not None:
            raise self._first_error

    def close(self) -> None:
        for address in list(self._nodes):
            self.kill(address)

    def kill(self, address: Address) -> None:
        if address not in self._nodes:
            return
        host, node = self._nodes.pop(address)
        if host is self._alone:
            node.close()
        else:
            host.close()

    def start(self, address: Address) -> Member:
        member = self._make(address)
        thread = self._thread(address)
        self._threads.append(thread)
        thread.start()
        return member

    def _make(self, address: Address) -> Member:
        seeks = COORDINATOR in self._case.players and address != COORDINATOR
        if self._homes is None:
            assert self._alone is not None
            host, coordinator = self._alone, ""
        else:
            host, coordinator = self._homes.host(address), self._homes.endpoint(COORDINATOR)
        node = host.node(address, coordinator if seeks else "")
        self._nodes[address] = host, node
        return Member(address, node.endpoint)

    def _thread(self, address: Address) -> threading.Thread:
        _, node = self._nodes[address]
        stage = _ThreadedStage(self, self._rejoiner[address])
        self._rejoiner[address] += 1

        def main() -> None:
            try:
                node.set_members(self.view)
                self._case.play(node, stage)
            except BaseException as error:
                killed = self._nodes.get(address, (None, None))[1] is not node
                if not (killed and isinstance(error, Cancelled)):
                    self._fail(error)
            if self._nodes.get(address, (None, None))[1] is node:
                self.kill(address)

        return threading.Thread(target=main, name=f"play of {address}", daemon=True)

    def _fail(self, error: BaseException) -> None:
        self._first_error = self._first_error or error
        for _, node in list(self._nodes.values()):
            node.cancel(error)


class _ThreadedStage:
    def __init__(self, play: _ThreadedPlay, incarnation: int) -> None:
        self.incarnation = incarnation
        self.view = play.view
        self.start = play.start
        self.kill = play.kill

    def pause(self, address: Address) -> None:
        raise NotImplementedError

    def cut(self, a: Address, b: Address) -> None:
        raise NotImplementedError

    resume = pause
    heal = cut


def _report_hung(threads: Iterable[threading.Thread]) -> str:
    frames = sys._current_frames()
    links = [f"not over after {LIMIT:g} s"]
    for thread in threads:
        if thread.ident in frames:
            links.append(f"{thread.name} hung:\n")
            links += traceback.format_stack(frames[thread.ident])
    return "".join(links)


class RealProcesses:
    """A process for each player; killed with SIGKILL, paused with SIGSTOP."""

    abilities = frozenset([Ability.PAUSE, Ability.RETURN])

    def __init__(self, *, network: bool = False) -> None:
        self._credentials = make_credentials() if network else ""

    def run(self, case: Case) -> None:
        """Stages the case; ``ProcessesFailed`` says who failed, died or hung."""
        with Processes() as processes:
            play = _ProcessesPlay(processes, case, Homes(processes.directory, self._credentials))
            for address in case.players:
                play.start(address)
            processes.wait()


class _ProcessesPlay:
    """The parent's side: does what the players ask for."""

    def __init__(self, processes: Processes, case: Case, homes: Homes) -> None:
        self._processes = processes
        self._case = case
        self._homes = homes
        self._view = _view(self._member(address) for address in case.players)
        self._rejoiner: Counter[Address] = Counter()
        self._awaited = set(case.players)

    def start(self, address: Address, then: Callable[[], None] = lambda: None) -> None:
        incarnation = self._rejoiner[address]
        self._rejoiner[address] += 1
        self._processes.start(
            str(address),
            _play,
            *(self._case, address, incarnation, self._view, self._homes),
            serve=lambda request: self._serve(address, then, *request),
        )

    def _member(self, address: Address) -> Member:
        return Member(address, self._homes.endpoint(address))

    def _serve(
        self, asker: Address, then: Callable[[], None], what: str, whom: Address | None = None
    ) -> None:
        def answer() -> None:
            self._processes.answer(str(asker), None)

        if what == "ready":
            self._ready(asker, then)
        elif what == "start":
            assert whom is not None
            self.start(whom, answer)
        else:
            processes = self._processes
            faults = {"kill": processes.kill, "pause": processes.pause, "resume": processes.resume}
            faults[what](str(whom))
            answer()

    def _ready(self, address: Address, then: Callable[[], None]) -> None:
        """All players of the beginning start together; a later one when it is there."""
        if not self._awaited:
            self._processes.answer(str(address), None)
            then()
            return
        self._awaited.remove(address)
        if not self._awaited:
            self._processes.allow(LIMIT)  # not from their start, which is slow on a busy machine
            for player in self._case.players:
                self._processes.answer(str(player), None)


class _ProcessStage:
    """A player's side: asks the parent."""

    def __init__(self, parent: Parent, homes: Homes, incarnation: int, view: View) -> None:
        self.incarnation = incarnation
        self.view = view
        self._parent = parent
        self._homes = homes

    def kill(self, address: Address) -> None:
        self._parent.ask(("kill", address))

    def pause(self, address: Address) -> None:
        self._parent.ask(("pause", address))

    def resume(self, address: Address) -> None:
        self._parent.ask(("resume", address))

    def start(self, address: Address) -> Member:
        self._parent.ask(("start", address))
        return Member(address, self._homes.endpoint(address))

    def cut(self, a: Address, b: Address) -> None:
        raise NotImplementedError

    heal = cut


def _play(
    parent: Parent, case: Case, address: Address, incarnation: int, view: View, homes: Homes
) -> None:
    """What a player's process does."""
    host = homes.host(address)
    seeks = COORDINATOR in case.players and address != COORDINATOR
    node = host.node(address, homes.endpoint(COORDINATOR) if seeks else "")
    node.set_members(view)
    parent.ask(("ready",))
    case.play(node, _ProcessStage(parent, homes, incarnation, view))
    host.close()
