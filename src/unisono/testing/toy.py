"""A learner without a network: a vector that follows targets, in double precision.

Position p of the pool asks for the point t_p, a fixed pseudo-random one; the loss is
|x - t_p|^2 / 2 and the step x = x - rate (x - t_p). What comes out depends on which positions went
in, and how often, so that a lost or doubled step shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from unisono.coordinator.client import CoordinatorLost, Refused
from unisono.fabric import Address, Cancelled, Fabric, TensorVector, Vector
from unisono.learner.plan import Minibatch
from unisono.learner.session import Session, Task
from unisono.strategies.base import Parcel, Strategy

BATCH = 4
"""Examples in a toy minibatch."""


def target(position: int, dimension: int) -> torch.Tensor:
    """The point that a position asks for."""
    generator = torch.Generator().manual_seed(1000 + position)
    return torch.randn(dimension, dtype=torch.float64, generator=generator)


class ToyStorage:
    """Parameters that are a vector already."""

    def __init__(self, dimension: int) -> None:
        self.parameters = TensorVector(torch.zeros(dimension, dtype=torch.float64))
        self.gradient = self.parameters.like()

    def new(self) -> TensorVector:
        """A vector of the model's size."""
        return self.parameters.like()

    def recycle(self, vector: TensorVector) -> None:
        """Nothing: vectors are small."""

    def read(self, vector: TensorVector) -> Callable[[], None]:
        """Copies the parameters out."""
        vector.assign(self.parameters)
        return lambda: None

    def write(self, vector: TensorVector) -> None:
        """Copies a vector in."""
        self.parameters.assign(vector)

    def add(self, vector: TensorVector) -> None:
        """Adds a vector."""
        self.parameters.add(vector)

    def read_gradient(self) -> TensorVector:
        """A copy of the gradient."""
        return self.gradient.copy()

    def write_gradient(self, vector: TensorVector) -> None:
        """Sets the gradient."""
        self.gradient.assign(vector)

    def update_begins(self) -> None:
        """Nothing to order."""

    def update_ended(self) -> None:
        """Nothing to order."""


@dataclass
class ToyOptimizer:
    """Plain gradient steps."""

    rate: float = 0.1

    def learning_rate(self) -> float:
        """The rate."""
        return self.rate

    def restart(self) -> None:
        """There is no state."""

    def export(self) -> Parcel:
        """There is no state."""
        return Parcel()

    def take_over(self, parcel: Parcel) -> None:
        """There is no state."""


@dataclass
class ToyLearner:
    """Runs a strategy over the whole pool. ``steps`` logs what it trained, in order."""

    fabric: Fabric
    strategy: Strategy
    total: int
    rate: float = 0.1
    dimension: int = 5
    cost: float = 1.0
    """Seconds that one minibatch takes (simulated)."""
    timeout: float = 10.0
    heartbeats: bool = True
    prefetch: int = 0
    rebirth: Callable[[Address], Fabric] | None = None
    """Makes the node of the next incarnation."""
    before_step: Callable[[ToyLearner, Minibatch], None] | None = None
    steps: list[int] = field(default_factory=list)
    final: torch.Tensor | None = None
    consensus: Vector | None = None
    rounds: int = 0
    storage: ToyStorage = field(init=False)
    session: Session[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.storage = ToyStorage(self.dimension)
        # Learners begin apart, so that a suite sees whether newcomers get their state.
        self.storage.parameters.tensor.fill_(float(self.fabric.address.number))

    def run(self) -> None:
        """The whole life: join, train, leave; once more from the start if it is refused.

        A run that ended without it leaves ``final`` unset.
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
            self.fabric = self.rebirth(self.fabric.address.reborn())

    def _live(self) -> None:
        task = Task(
            total=self.total,
            batch_size=BATCH,
            load=lambda m: target(m.position, self.dimension),
            examples=lambda m: BATCH,
            prefetch=self.prefetch,
        )
        self.session = Session(
            self.fabric,
            self.strategy,
            self.storage,
            ToyOptimizer(self.rate),
            task,
            timeout=self.timeout,
            heartbeats=self.heartbeats,
        )
        self.session.join()
        stepper = self.session.stepper
        while (found := stepper.next()) is not None:
            minibatch, goal = found
            if self.before_step is not None:
                self.before_step(self, minibatch)
            self._backward(goal)
            stepper.backward_done()
            self._update()
            if not minibatch.stand_in:
                self.steps.append(minibatch.position)
            stepper.update_done()
        self.rounds = self.session.participant.rounds
        self.session.leave()
        if not self.session.stepper.entered:
            return
        self.final = self.storage.parameters.tensor.clone()
        self.consensus = self.session.participant.consensus()

    def _backward(self, goal: torch.Tensor) -> None:
        def work() -> None:
            self.storage.gradient.tensor.copy_(self.storage.parameters.tensor - goal)

        self.fabric.compute(work, self.cost)

    def _update(self) -> None:
        self.session.replica.begin_update()
        self.storage.parameters.add(self.storage.gradient, -self.rate)
