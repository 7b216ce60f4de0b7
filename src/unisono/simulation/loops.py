"""A user's own loop on a simulated cluster: real models, a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unisono.coordinator.client import Abandoned, CoordinatorLost
from unisono.coordinator.journal import Journal, MemoryJournal, NoJournal
from unisono.coordinator.service import Service, Sink, serve
from unisono.coordinator.state import State
from unisono.fabric import COORDINATOR, Address, Fabric, learner, server
from unisono.fabric.simulated.kernel import Kernel, Network, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import Scheduler
from unisono.learner.placement import at_placement, commit_checkpoint, find_placement
from unisono.learner.rejoiner import reason_of
from unisono.simulation.faults import (
    Cut,
    Disturbances,
    Fault,
    Join,
    Kill,
    KillCoordinator,
    Partition,
    Pause,
)


@dataclass
class LoopsRun:
    """What came out of a simulated run."""

    state: State
    """The coordinator's, at the end."""
    seconds: float
    """How long it took on the virtual clock."""
    events: list[dict[str, Any]]
    """What the learners told for the metrics."""
    errors: dict[int, Exception]
    """What each loop that failed raised, in the order of time."""
    computed_s: dict[int, float]
    """Virtual seconds that each learner spent computing."""
    bytes_sent: int
    """Vectors, by all learners."""


def run_loops(
    loop: Callable[[], None],
    *,
    learners: int,
    servers: int = 0,
    cost: float = 1.0,
    slowness: Mapping[int, float] | None = None,
    spread: Mapping[int, float] | None = None,
    scheduler: Scheduler | None = None,
    network: Network | None = None,
    timeout: float = 10.0,
    faults: Sequence[Fault] = (),
    disturbances: Disturbances | None = None,
    limit: float = 1e6,
    check: bool = True,
    sink: Sink | None = None,
    hosts: Mapping[int, str] | None = None,
    numerics: bool = True,
) -> LoopsRun:
    """Runs the same function once a learner, each as if it were alone in a process of its own.

    A ``unisono.Learner`` made in it lives on a node of the simulated fabric; its numbers are real,
    and each learner has random generators of its own, which begin as they are now.

    Args:
        loop: the user's training, from the model to the last minibatch.
        learners: how many.
        servers: how many hold shards and train nothing; their numbers follow those of learners.
        cost: seconds that one ``backward`` takes.
        slowness: how many times longer it takes at some learners, by number.
        spread: how much it varies at some learners: the standard deviation of its logarithm.
        scheduler: who runs next where the clock leaves it open.
        network: what a message costs; by default ten milliseconds.
        timeout: seconds until a silent learner is declared dead.
        faults: what goes wrong, and when.
        disturbances: further faults, and learners that are slow at times or come late.
        limit: seconds after which the run counts as stuck.
        check: raise the first error of a loop; without it they are in the result.
        sink: takes each event of the metrics at once; without it they are in the result.
        hosts: what the machines of learners are called, by number.
        numerics: whether the loops compute anything; what they do otherwise takes less real time.

    Returns:
        What the coordinator knows at the end.

    Raises:
        DeadlockError: nobody can go on, or ``limit`` passed.
    """
    loops = _Loops(
        loop,
        learners,
        servers,
        cost,
        slowness or {},
        spread or {},
        Kernel(
            scheduler=scheduler,
            network=network or SimulatedNetwork(latency=0.01),
            limit=limit,
            numerics=numerics,
        ),
        timeout,
        disturbances or Disturbances(),
        sink,
        hosts or {},
    )
    run = loops.run(faults)
    if check:
        for error in _first_first(run.errors):
            raise error
    return run


def virtual_now() -> float:
    """Seconds on the virtual clock, in a loop of ``run_loops``."""
    placement = find_placement()
    assert isinstance(placement, _SimulatedPlacement), "not in a simulation"
    return placement.loops.kernel.now


def _first_first(errors: Mapping[int, Exception]) -> list[Exception]:
    """The cause before what followed from it."""
    return sorted(errors.values(), key=lambda error: isinstance(error, Abandoned))


@dataclass
class _SimulatedPlacement:
    """A simulated learner's place; see ``unisono.learner.placement.Placement``."""

    loops: _Loops
    number: int
    learners: int
    timeout: float
    host: str
    current: SimulatedNode
    serves: bool = False
    _used: bool = field(default=False, init=False)

    @property
    def cost(self) -> float:
        """Seconds of the minibatch that begins now."""
        return self.loops.cost(self.number)

    def node(self, address: Address) -> Fabric:
        """The node that was made with the loop, then one for each later life."""
        if self._used:
            self.current = self.loops.node(address)
            self.loops.kernel.adopt(self.current)
        self._used = True
        return self.current

    def close(self) -> None:
        """Closes the node, unless it was killed."""
        if self.loops.kernel.nodes.get(self.current.address) is self.current:
            self.current.close()


class _Loops:
    def __init__(
        self,
        loop: Callable[[], None],
        learners: int,
        servers: int,
        cost: float,
        slowness: Mapping[int, float],
        spread: Mapping[int, float],
        kernel: Kernel,
        timeout: float,
        disturbances: Disturbances,
        sink: Sink | None,
        hosts: Mapping[int, str],
    ) -> None:
        self._loop = loop
        self._learners = learners
        self._servers = range(learners, learners + servers)
        self._cost = cost
        self._slowness = slowness
        self._spread = spread
        self._timeout = timeout
        self._disturbances = disturbances
        self._hosts = hosts
        self.kernel = kernel
        self._journal: Journal = NoJournal()
        self._events: list[dict[str, Any]] = []
        self._sink: Sink = sink or self._events.append
        self._errors: dict[int, Exception] = {}
        self._nodes: list[SimulatedNode] = []
        self._is_over = False

    def run(self, faults: Sequence[Fault]) -> LoopsRun:
        planned = (*faults, *self._disturbances.faults)
        if any(isinstance(fault, KillCoordinator) for fault in planned):
            self._journal = MemoryJournal()
        self._start_coordinator()
        for number in range(self._servers.stop):
            if number not in self._disturbances.late:
                self._start(number)
        for fault in planned:
            self.kernel.at(fault.at, partial(self._inject, fault))
        self._draw_fault()
        self.kernel.run()
        computed = dict.fromkeys(sorted(n.address.number for n in self._nodes), 0.0)
        for node in self._nodes:
            computed[node.address.number] += node.computed_s
        return LoopsRun(
            self._service.state,
            self.kernel.now,
            self._events,
            self._errors,
            computed,
            sum(node.bytes_sent for node in self._nodes),
        )

    def cost(self, number: int) -> float:
        """Seconds of a learner's minibatch that begins now, but for its slowness and spread."""
        straggler = self._disturbances.stragglers.get(number)
        return self._cost * (1.0 if straggler is None else straggler.slowness(self.kernel.now))

    def node(self, address: Address) -> SimulatedNode:
        number = address.number
        slowness, spread = self._slowness.get(number, 1.0), self._spread.get(number, 0.0)
        node = SimulatedNode(self.kernel, address, slowness, spread)
        self._nodes.append(node)
        return node

    def _start(self, number: int) -> None:
        serves = number in self._servers
        node = self.node(server(number) if serves else learner(number))
        host = self._hosts.get(number, "simulated")
        placement = _SimulatedPlacement(
            self, number, self._learners, self._timeout, host, node, serves
        )
        if self.kernel.numerics:
            self.kernel.keep_random_state(node)

        def main() -> None:
            try:
                with at_placement(placement):
                    self._loop()
            except Exception as error:
                # Who was cut off until the run was over looks for the coordinator in vain.
                if not (self._is_over and isinstance(reason_of(error), CoordinatorLost)):
                    self._errors[number] = error

        self.kernel.main(node, main)

    def _start_coordinator(self) -> None:
        node = SimulatedNode(self.kernel, COORDINATOR)
        service = self._service = Service(
            node,
            self._journal,
            expected=self._servers.stop - len(self._disturbances.late),
            timeout=self._timeout,
            sink=self._sink,
            on_checkpoint=commit_checkpoint,
        )

        def work() -> None:
            serve(service)
            self._is_over = True
            node.close()

        node.spawn("serve", work)

    def _draw_fault(self) -> None:
        """The next random fault; the one after it is drawn when its time has come."""
        fault = next(self._disturbances.random_faults, None)
        if fault is not None:

            def happen() -> None:
                self._inject(fault)
                self._draw_fault()

            self.kernel.at(fault.at, happen)

    def _living(self, numbers: Sequence[int]) -> list[Address]:
        return [a for a in self.kernel.nodes if a != COORDINATOR and a.number in numbers]

    def _inject(self, fault: Fault | Partition) -> None:
        kernel = self.kernel
        if isinstance(fault, KillCoordinator):
            if COORDINATOR in kernel.nodes:
                kernel.kill(COORDINATOR)
                kernel.at(kernel.now + fault.back_after, self._start_coordinator)
            return
        if isinstance(fault, Join):
            if not self._living([fault.number]):
                self._start(fault.number)
            return
        if isinstance(fault, Partition):
            self._part(fault)
            return
        for address in self._living([fault.number]):
            if isinstance(fault, Kill):
                kernel.kill(address)
            elif isinstance(fault, Pause):
                kernel.pause(address)
                kernel.at(kernel.now + fault.seconds, partial(kernel.resume, address))
            elif isinstance(fault, Cut):
                kernel.cut(address, COORDINATOR)
                heal = partial(kernel.heal, address, COORDINATOR)
                kernel.at(kernel.now + fault.seconds, heal)

    def _part(self, fault: Partition) -> None:
        kernel = self.kernel
        inside = self._living(fault.numbers)
        inside += [COORDINATOR] if fault.with_coordinator else []
        outside = [address for address in kernel.nodes if address not in inside]
        for one in inside:
            for other in outside:
                kernel.cut(one, other)
                kernel.at(kernel.now + fault.seconds, partial(kernel.heal, one, other))
