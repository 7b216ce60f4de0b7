"""Toy learners on the simulated fabric, with faults at chosen times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.coordinator.journal import Journal, MemoryJournal
from unisono.coordinator.service import Service, serve
from unisono.fabric import COORDINATOR, Address, learner
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import ExhaustiveScheduler, Scheduler
from unisono.testing.cluster import Cluster, ToyRun
from unisono.testing.coverage import Coverage
from unisono.testing.faults import Cut, Fault, Join, Kill, KillCoordinator, Pause
from unisono.testing.toy import ToyLearner

__all__ = ["Cut", "Fault", "Join", "Kill", "KillCoordinator", "Pause", "ToyCluster", "ToyRun"]


@dataclass(kw_only=True)
class ToyCluster(Cluster):
    """A simulated cluster of toy learners. A minibatch takes one second."""

    scheduler: Scheduler | None = None
    network: SimulatedNetwork = field(default_factory=lambda: SimulatedNetwork(latency=0.01))
    faults: Sequence[Fault] = ()
    limit: float = 5000.0
    """Virtual seconds after which a run counts as stuck."""
    journal: Journal = field(default_factory=MemoryJournal)

    def run(self) -> ToyRun:
        self.kernel = Kernel(scheduler=self.scheduler, network=self.network, limit=self.limit)
        # Where all orders are walked nothing dies unseen, and timers would only multiply them.
        self._patient = isinstance(self.scheduler, ExhaustiveScheduler)
        self._toys: list[ToyLearner] = []
        self._coverage = Coverage()
        self._start_coordinator()
        for address in self.members():
            self._start(address)
        for fault in self.faults:
            self.kernel.at(fault.at, lambda fault=fault: self._inject(fault))  # type: ignore[misc]
        self.kernel.run()
        return ToyRun(
            total=self.total,
            state=self._service.state,
            results=[toy.result for toy in self._toys],
            coverage=self._coverage,
            ordered=True,
        )

    def kill_coordinator(self, back_after: float) -> None:
        """Kills the coordinator now; it comes back from its journal."""
        if COORDINATOR in self.kernel.nodes:
            self.kernel.kill(COORDINATOR)
            self.kernel.at(self.kernel.now + back_after, self._start_coordinator)

    def _start_coordinator(self) -> None:
        node = SimulatedNode(self.kernel, COORDINATOR)
        timeout = 1e12 if self._patient else self.timeout
        service = Service(node, self.journal, expected=len(self.members()), timeout=timeout)
        self._service = service

        def work() -> None:
            serve(service)
            node.close()

        node.spawn("serve", work)

    def _start(self, address: Address) -> None:
        node = self._node(address)
        toy = self.toy(node, self._coverage)
        toy.heartbeats = not self._patient
        toy.rebirth = self._rejoin
        self._toys.append(toy)
        self.kernel.main(node, toy.run)

    def _node(self, address: Address) -> SimulatedNode:
        return SimulatedNode(self.kernel, address, self.slowness.get(address.number, 1.0))

    def _rejoin(self, address: Address) -> SimulatedNode:
        node = self._node(address)
        self.kernel.adopt(node)
        return node

    def _inject(self, fault: Fault) -> None:
        kernel = self.kernel
        if isinstance(fault, KillCoordinator):
            self.kill_coordinator(fault.back_after)
            return
        if isinstance(fault, Join):
            self._start(learner(fault.number))
            return
        living = [a for a in kernel.nodes if a != COORDINATOR and a.number == fault.number]
        for address in living:
            if isinstance(fault, Kill):
                kernel.kill(address)
            elif isinstance(fault, Pause):
                kernel.pause(address)
                kernel.at(kernel.now + fault.seconds, lambda a=address: kernel.resume(a))  # type: ignore[misc]
            else:
                kernel.cut(address, COORDINATOR)
                heal = lambda a=address: kernel.heal(a, COORDINATOR)  # noqa: E731
                kernel.at(kernel.now + fault.seconds, heal)
