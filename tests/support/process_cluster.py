"""Toy learners in real processes, which can be killed for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.processes import Parent, Processes
from support.thread_cluster import REST
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.service import Service, serve
from unisono.fabric import COORDINATOR, Address, TimedOut, learner
from unisono.fabric.local.host import Host
from unisono.fabric.simulated.kernel import DeadlockError
from unisono.learner.planner import Minibatch
from unisono.testing.cluster import Cluster, ToyRun
from unisono.testing.coverage import Coverage
from unisono.testing.toy import Result, ToyLearner

_SOCKET = "coordinator.sock"
_TRAINED = "trained"


@dataclass(kw_only=True)
class ProcessCluster(Cluster):
    """A process a learner; the coordinator is in this one. The strategy must pickle."""

    timeout: float = 30.0
    limit: float = 150.0
    """Seconds after which a run counts as stuck."""
    kill: Mapping[int, int] = field(default_factory=dict)
    """Learners to kill, each before its step of that number."""

    def run(self) -> ToyRun:
        """Runs to the end; raises if there is none."""
        with Processes(self.limit) as processes:
            host = Host(processes.directory, _SOCKET)
            try:
                return self._run(processes, host)
            finally:
                host.close()

    def _run(self, processes: Processes, host: Host) -> ToyRun:
        coordinator, control = host.node(COORDINATOR), host.node(Address("control"))
        control.port("ended")
        journal = MemoryJournal()
        service = Service(coordinator, journal, expected=self.learners, timeout=self.timeout)

        def work() -> None:
            serve(service)
            control.post("ended", {})

        coordinator.spawn("serve", work)
        for number in range(self.learners):
            name = learner(number).name
            processes.start(
                name,
                _live,
                replace(self),
                number,
                processes.directory,
                serve=lambda _, name=name: processes.kill(name),  # type: ignore[misc]
            )
        results: list[Result] = [r for r in processes.wait().values() if r is not None]
        try:
            control.receive("ended", timeout=self.limit)
        except TimedOut:
            raise DeadlockError("the learners have ended, and the coordinator has not") from None
        coverage = _read(processes.directory)
        return ToyRun(self.total, service.state, results, coverage, ordered=False)


def _live(parent: Parent, cluster: ProcessCluster, number: int, directory: Path) -> Result:
    """What the process of a learner does."""
    host = Host(directory)
    endpoint = f"unix:{directory / _SOCKET}"
    toy = cluster.toy(host.node(learner(number), endpoint), Coverage())
    toy.rebirth = lambda address: host.node(address, endpoint)
    toy.rest = REST * cluster.slowness.get(number, 0.0)
    last = cluster.kill.get(number)
    with (directory / f"{number}.{_TRAINED}").open("a", buffering=1) as log:

        def before_step(toy: ToyLearner, minibatch: Minibatch) -> None:
            if len(toy.result.steps) == last:
                parent.ask("kill me")
            if not minibatch.stand_in:
                log.write(f"{toy.fabric.address} {minibatch.position}\n")

        toy.before_step = before_step
        toy.run()
    host.close()
    return toy.result


def _read(directory: Path) -> Coverage:
    coverage = Coverage()
    for file in sorted(directory.glob(f"*.{_TRAINED}")):
        for line in file.read_text().splitlines():
            who, position = line.split()
            coverage.train(Address.parse(who), int(position))
    return coverage
