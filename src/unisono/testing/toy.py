"""A learner without a network: a vector in double precision that makes plain gradient steps.

What it learns is a ``Loss``; by default each position of the pool asks for a point of its own, so
that what comes out depends on which positions went in, and how often, and a lost or doubled step
shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from unisono.coordinator.client import CoordinatorLost, Refused
from unisono.fabric import Address, Cancelled, Fabric, TensorVector, Vector
from unisono.learner.planner import Minibatch
from unisono.learner.session import Session
from unisono.learner.task import Task
from unisono.pool.ranges import Range
from unisono.strategies.base import StateBundle, Strategy, TrainedWork
from unisono.testing.ledger import Kind, Ledger, Ledgered, Numbers, numbers
from unisono.testing.losses import Loss, Targets

BATCH = 4
"""Examples in a full toy minibatch."""


def examples(position: int) -> int:
    """Examples in the minibatch of a position: 1 to ``BATCH``, so that weights are unequal."""
    return 1 + position % BATCH


class ToyStorage:
    """Parameters that are a vector already."""

    def __init__(self, dimension: int) -> None:
        self.vector = TensorVector(torch.zeros(dimension, dtype=torch.float64))
        self.gradient = self.vector.like()

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [self.vector.tensor]

    def new(self) -> TensorVector:
        return self.vector.like()

    def recycle(self, vector: TensorVector) -> None:
        """Nothing: vectors are small."""

    def read(self, vector: TensorVector) -> Callable[[], None]:
        vector.assign(self.vector)
        return lambda: None

    def write(self, vector: TensorVector, *, frozen: bool = False) -> None:
        self.vector.assign(vector)

    def add(self, vector: TensorVector) -> None:
        self.vector.add(vector)

    def read_gradient(self) -> TensorVector:
        return self.gradient.copy()

    def add_gradient(self, total: TensorVector, factor: float) -> None:
        total.add(self.gradient, factor)

    def read_parameters(self) -> TensorVector:
        return self.vector.copy()

    def write_gradient(self, vector: TensorVector) -> None:
        self.gradient.assign(vector)

    def update_begins(self) -> None:
        """Nothing to order."""

    def update_ended(self) -> None:
        """Nothing to order."""


@dataclass
class ToyUpdater:
    """Plain gradient steps, elsewhere."""

    values: TensorVector

    def step(self, gradient: Vector, rates: Sequence[float]) -> None:
        # Rounded as the learner's own step is.
        change = gradient.copy()
        change.scale(-rates[0])
        self.values.add(cast("TensorVector", change))

    def state(self) -> StateBundle:
        return StateBundle()

    def load_state(self, bundle: StateBundle) -> None:
        """There is no state."""


@dataclass
class ToyOptimizer:
    """Plain gradient steps."""

    rate: float = 0.1

    def learning_rate(self) -> float:
        return self.rate

    def learning_rates(self) -> list[float]:
        return [self.rate]

    def updater(
        self, parameters: Sequence[torch.Tensor], values: TensorVector, start: int
    ) -> ToyUpdater:
        return ToyUpdater(values)

    def restart(self) -> None:
        """There is no state."""

    def export(self) -> StateBundle:
        return StateBundle()

    def take_over(self, bundle: StateBundle) -> None:
        """There is no state."""


@dataclass
class Result:
    """What a learner leaves behind; plain data, so that it can come from another process."""

    address: Address
    """The learner, in its last incarnation."""
    steps: list[int] = field(default_factory=list)
    """The positions that it trained, in order, over all its lives."""
    ledger: Ledger = field(default_factory=Ledger)
    rounds: int = 0
    final: Numbers | None = None
    """Its parameters at the end; None if it did not come to an orderly one."""
    consensus: Numbers | None = None
    """What the strategy hands out at the end."""


@dataclass
class ToyLearner:
    """Runs a strategy over the whole pool."""

    fabric: Fabric
    strategy: Strategy
    total: int
    loss: Loss = field(default_factory=Targets)
    rate: float = 0.1
    cost: float = 1.0
    """Seconds that one minibatch takes (simulated)."""
    rest: float = 0.0
    """Seconds to sleep before each minibatch: the slowness of a learner on a real fabric."""
    timeout: float = 10.0
    heartbeats: bool = True
    prefetch: int = 0
    committed: Sequence[Range] = ()
    """Positions that were committed before: a run that goes on."""
    rebirth: Callable[[Address], Fabric] | None = None
    """Makes the node of the next incarnation."""
    before_step: Callable[[ToyLearner, Minibatch], None] | None = None
    result: Result = field(init=False)
    storage: ToyStorage = field(init=False)
    session: Session[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.result = Result(self.fabric.address)
        self.storage = ToyStorage(self.loss.dimension)
        self.storage.vector.tensor.copy_(self.loss.start(self.fabric.address.number))

    def run(self) -> None:
        """The whole life: join, train, leave; once more from the start if it is refused.

        A run that ended without it leaves ``result.final`` unset.
        """
        while True:
            try:
                self._live()
                return
            except (Cancelled, Refused) as end:
                reason = end.__cause__ if isinstance(end, Cancelled) else end
                if isinstance(reason, CoordinatorLost):
                    return
                if not isinstance(reason, Refused) or self.rebirth is None:
                    raise
            self.fabric.close()
            self.fabric = self.rebirth(self.fabric.address.next_incarnation())
            self.result.address = self.fabric.address

    def _live(self) -> None:
        ledger = self.result.ledger
        ledgered = Ledgered(self.strategy, ledger)
        self.session = Session(
            self.fabric,
            cast("Strategy", ledgered),
            self.storage,
            ToyOptimizer(self.rate),
            self._task(),
            timeout=self.timeout,
            heartbeats=self.heartbeats,
        )
        ledger.write(Kind.BEGIN, self.storage.vector)
        self.session.join()
        stepper = self.session.stepper
        replica = ledgered.replica
        assert replica is not None
        while (found := stepper.next()) is not None:
            minibatch, data = found
            if self.before_step is not None:
                self.before_step(self, minibatch)
            replica.work = _work(minibatch)
            self._backward(data)
            stepper.backward_done()
            if stepper.update_begins():
                self._update()
            else:
                self.session.replica.begin_update()
            if not minibatch.stand_in:
                self.result.steps.append(minibatch.position)
            stepper.update_done()
        self.result.rounds = self.session.participant.rounds
        self.session.leave()
        if not stepper.entered:
            return
        own = self.storage.vector
        consensus = self.session.participant.consensus()
        self.result.consensus = numbers(own if consensus is None else consensus)
        self.result.final = numbers(own)

    def _task(self) -> Task[torch.Tensor]:
        return Task(
            total=self.total,
            batch_size=BATCH,
            load=lambda m: self.loss.load(m.position),
            examples=lambda m: examples(m.position),
            prefetch=self.prefetch,
            committed=self.committed,
        )

    def _backward(self, data: torch.Tensor) -> None:
        def work() -> None:
            x = self.storage.vector.tensor
            step = len(self.result.steps)
            self.storage.gradient.tensor.copy_(
                self.loss.gradient(x, data, self.fabric.address, step)
            )

        if self.rest > 0:
            self.fabric.sleep(self.rest)
        self.fabric.compute(work, self.cost)

    def _update(self) -> None:
        self.session.replica.begin_update()
        change = self.storage.gradient.copy()
        change.scale(-self.rate)
        self.storage.vector.add(change)
        self.result.ledger.write(Kind.STEP, change)


def _work(minibatch: Minibatch) -> TrainedWork:
    if minibatch.stand_in:
        return TrainedWork()
    position = minibatch.position
    return TrainedWork([(position, position + 1)], examples(position))
