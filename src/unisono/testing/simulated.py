"""Runs toy learners on the simulated fabric, with faults at chosen times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.service import Service, serve
from unisono.fabric import COORDINATOR, Address, learner
from unisono.fabric.kernel import Kernel, Network
from unisono.fabric.schedules import Exhaustive, Schedule
from unisono.fabric.simulated import SimulatedNode
from unisono.learner.plan import Minibatch
from unisono.strategies.base import Strategy
from unisono.testing.coverage import Coverage
from unisono.testing.toy import ToyLearner


@dataclass(frozen=True)
class Kill:
    """kill -9 of a learner."""

    at: float
    number: int


@dataclass(frozen=True)
class KillCoordinator:
    """kill -9 of the coordinator, which comes back from its journal."""

    at: float
    back_after: float = 1.0


@dataclass(frozen=True)
class Pause:
    """SIGSTOP of a learner, and SIGCONT."""

    at: float
    number: int
    seconds: float


@dataclass(frozen=True)
class Cut:
    """A learner and the coordinator do not reach each other for a while."""

    at: float
    number: int
    seconds: float


@dataclass(frozen=True)
class Join:
    """A learner that comes late."""

    at: float
    number: int


Fault = Kill | KillCoordinator | Pause | Cut | Join


@dataclass
class ToyRun:
    """What came out of a run."""

    service: Service
    learners: list[ToyLearner]
    kernel: Kernel
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def survivors(self) -> list[ToyLearner]:
        """Those that ended in an orderly way."""
        return [toy for toy in self.learners if toy.final is not None]


@dataclass(kw_only=True)
class ToyCluster:
    """A simulated cluster of toy learners."""

    strategy: Strategy
    learners: int
    total: int
    schedule: Schedule | None = None
    network: Network = field(default_factory=lambda: Network(latency=0.01))
    slowness: Mapping[int, float] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    timeout: float = 10.0
    prefetch: int = 2
    rate: float = 0.1
    limit: float = 5000.0
    _journal: MemoryJournal = field(default_factory=MemoryJournal)

    def run(self) -> ToyRun:
        """Runs to the end; raises ``Stuck`` if there is none."""
        self._kernel = Kernel(schedule=self.schedule, network=self.network, limit=self.limit)
        self._patient = isinstance(self.schedule, Exhaustive)
        self._toys: list[ToyLearner] = []
        self._coverage = Coverage()
        self._start_coordinator()
        for number in range(self.learners):
            self._start_learner(number)
        for fault in self.faults:
            self._kernel.at(fault.at, lambda fault=fault: self._inject(fault))  # type: ignore[misc]
        self._kernel.run()
        return ToyRun(self._service, self._toys, self._kernel, self._coverage)

    def _start_coordinator(self) -> None:
        node = SimulatedNode(self._kernel, COORDINATOR)
        timeout = 1e12 if self._patient else self.timeout
        service = Service(node, self._journal, expected=self.learners, timeout=timeout)
        self._service = service

        def work() -> None:
            serve(service)
            node.close()

        node.spawn("serve", work)

    def _node(self, address: Address) -> SimulatedNode:
        return SimulatedNode(self._kernel, address, self.slowness.get(address.number, 1.0))

    def _rebirth(self, address: Address) -> SimulatedNode:
        node = self._node(address)
        self._kernel.adopt(node)
        return node

    def _start_learner(self, number: int) -> None:
        node = self._node(learner(number))
        toy = ToyLearner(
            node,
            self.strategy,
            self.total,
            rate=self.rate,
            timeout=self.timeout,
            heartbeats=not self._patient,
            prefetch=self.prefetch,
            rebirth=self._rebirth,
            before_step=self._log,
        )
        self._toys.append(toy)
        self._kernel.main(node, toy.run)

    def _log(self, toy: ToyLearner, minibatch: Minibatch) -> None:
        if not minibatch.stand_in:
            self._coverage.train(toy.fabric.address, minibatch.position)

    def _inject(self, fault: Fault) -> None:
        kernel = self._kernel
        if isinstance(fault, KillCoordinator):
            if COORDINATOR in kernel.nodes:
                kernel.kill(COORDINATOR)
                kernel.at(kernel.now + fault.back_after, self._start_coordinator)
            return
        if isinstance(fault, Join):
            self._start_learner(fault.number)
            return
        living = [a for a in kernel.nodes if a.role == "learner" and a.number == fault.number]
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
