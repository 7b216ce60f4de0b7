"""A cluster of toy learners, whatever carries their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unisono.coordinator.state import State
from unisono.fabric import Address, Fabric, learner, server
from unisono.learner.planner import Minibatch
from unisono.pool.ranges import Range
from unisono.strategies.base import Strategy
from unisono.testing.coverage import Coverage
from unisono.testing.losses import Loss, Targets
from unisono.testing.toy import Result, ToyLearner


@dataclass
class ToyRun:
    """The result of a run."""

    total: int
    state: State
    """The coordinator's, at the end."""
    results: list[Result]
    coverage: Coverage
    ordered: bool
    """Whether the ledgers' entries are in the order in which things happened."""

    @property
    def survivors(self) -> list[Result]:
        return [result for result in self.results if result.final is not None]


@dataclass(kw_only=True)
class Cluster:
    """What all clusters of toy learners have in common."""

    strategy: Strategy
    learners: int
    servers: int = 0
    """Members that hold shards and train nothing; their numbers follow those of the learners."""
    total: int
    """Minibatches."""
    loss: Loss = field(default_factory=Targets)
    rate: float = 0.1
    prefetch: int = 2
    slowness: Mapping[int, float] = field(default_factory=dict)
    """How many times longer a minibatch takes at a learner."""
    committed: Sequence[Range] = ()
    """Positions that were committed before a resumption."""
    timeout: float = 10.0
    """Seconds until a silent learner is declared dead."""

    def members(self) -> list[Address]:
        """The learners and servers that it begins with."""
        count = self.learners + self.servers
        return [learner(n) if n < self.learners else server(n) for n in range(count)]

    def run(self) -> ToyRun:
        """Runs to the end; raises ``DeadlockError`` if there is none."""
        raise NotImplementedError

    def toy(self, fabric: Fabric, coverage: Coverage) -> ToyLearner:
        """One of its learners; what it trains goes into ``coverage``."""

        def before_step(toy: ToyLearner, minibatch: Minibatch) -> None:
            if not minibatch.stand_in:
                coverage.train(toy.fabric.address, minibatch.position)

        return ToyLearner(
            fabric,
            self.strategy,
            self.total,
            loss=self.loss,
            rate=self.rate,
            timeout=self.timeout,
            prefetch=self.prefetch,
            committed=self.committed,
            before_step=before_step,
        )
