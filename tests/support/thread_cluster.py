"""Toy learners on real threads: the same code as in simulation, on the fabric of this host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.service import Service, serve
from unisono.fabric import COORDINATOR, Address, Fabric, TimedOut
from unisono.fabric.local.host import Host
from unisono.fabric.simulated.kernel import DeadlockError
from unisono.testing.cluster import Cluster, ToyRun
from unisono.testing.coverage import Coverage

_GRACE = 5.0
REST = 0.001
"""Seconds that a learner on a real fabric rests before a minibatch, times its slowness."""


@dataclass(kw_only=True)
class ThreadCluster(Cluster):
    """Several nodes in this process, each with threads of its own.

    A learner computes no longer than its toy gradient takes; one with a ``slowness`` rests a
    millisecond times that before each minibatch. The run ends within ``limit`` seconds, or is
    cancelled and left behind.
    """

    timeout: float = 30.0
    limit: float = 150.0
    """Seconds after which a run counts as stuck."""
    sockets: Path | None = None
    """A folder for sockets: each node lives on a host of its own, as in another process."""

    def run(self) -> ToyRun:
        """Runs to the end; raises ``DeadlockError`` if there is none."""
        self._control = Host().node(Address("control"))
        self._control.port("ended")
        self._errors: list[BaseException] = []
        self._hosts: list[Host] = []
        self._nodes: list[Fabric] = []
        coverage = Coverage()
        coordinator = self._host().node(COORDINATOR)
        self._nodes.append(coordinator)
        journal = MemoryJournal()
        service = Service(coordinator, journal, expected=len(self.members()), timeout=self.timeout)
        toys = []
        self._spawn(coordinator, lambda: serve(service))
        for address in self.members():
            node = self._node(address)
            toy = self.toy(node, coverage)
            toy.rebirth = self._node
            toy.rest = REST * self.slowness.get(address.number, 0.0)
            toys.append(toy)
            self._spawn(node, toy.run)
        self._wait(len(toys) + 1)
        results = [toy.result for toy in toys]
        return ToyRun(self.total, service.state, results, coverage, ordered=False)

    def _host(self) -> Host:
        if self.sockets is None and self._hosts:
            return self._hosts[0]
        host = Host(self.sockets)
        self._hosts.append(host)
        return host

    def _node(self, address: Address) -> Fabric:
        node = self._host().node(address, self._hosts[0].endpoint)
        self._nodes.append(node)
        return node

    def _spawn(self, node: Fabric, activity: Callable[[], None]) -> None:
        """Runs an activity in a thread of its node; its end, good or bad, is a message."""

        def work() -> None:
            try:
                activity()
            except BaseException as error:
                self._errors.append(error)
            self._control.post("ended", {"who": node.address.name})

        node.spawn("main", work)

    def _wait(self, count: int) -> None:
        running = [node.address.name for node in self._nodes]
        try:
            deadline = self._control.now() + self.limit
            for _ in range(count):
                left = max(0.0, deadline - self._control.now())
                running.remove(self._control.receive("ended", timeout=left).body["who"])
                if self._errors:
                    raise self._errors[0]
        except TimedOut:
            raise DeadlockError(f"not over after {self.limit:g} s: {', '.join(running)}") from None
        finally:
            self._close()

    def _close(self) -> None:
        """Closes all nodes, in a thread that is left behind if one of theirs does not end."""

        def close() -> None:
            for node in self._nodes:
                node.close()
            for host in self._hosts:
                host.close()
            self._control.post("closed", {})

        for node in self._nodes:
            node.cancel(DeadlockError("the run is over"))
        self._control.spawn("close", close)
        try:
            self._control.receive("closed", timeout=_GRACE)
        except TimedOut:
            raise DeadlockError(
                f"an activity did not end within {_GRACE:g} s of its cancelling"
            ) from None
