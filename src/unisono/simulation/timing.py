"""Time alone: the code of a strategy with byte counts in place of tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unisono.coordinator.client import Refused
from unisono.errors import UserError
from unisono.fabric import Cancelled, Fabric, SizeVector
from unisono.fabric.simulated.kernel import Network
from unisono.learner.placement import Placement, address_at, find_placement
from unisono.learner.rejoiner import reason_of
from unisono.learner.session import Session
from unisono.learner.task import Task
from unisono.simulation.faults import Disturbances
from unisono.simulation.loops import run_loops
from unisono.strategies.base import StateBundle, Strategy

YOUNG = 100_000
"""Objects that are made before Python looks for cycles among them."""

OnCompute = Callable[[int, float, float], None]
"""Takes the number of a learner, and when it began and ended to compute a minibatch."""


class SizeStorage:
    """A model that has a size and no values; see ``unisono.learner.replica.Storage``."""

    parameters: Sequence[Any] = ()

    def __init__(self, count: int) -> None:
        self._count = count

    def new(self) -> SizeVector:
        """A vector of the model's size."""
        return SizeVector(self._count)

    read_gradient = read_parameters = new

    def recycle(self, vector: SizeVector) -> None:
        """Nothing: vectors have no memory."""

    def read(self, vector: SizeVector) -> Callable[[], None]:
        """Nothing: there are no values."""
        return lambda: None

    def write(self, vector: SizeVector, *, frozen: bool = False) -> None:
        """Nothing: there are no values."""

    def add(self, vector: SizeVector) -> None:
        """Nothing: there are no values."""

    def add_gradient(self, total: SizeVector, factor: float) -> None:
        """Nothing: there are no values."""

    def write_gradient(self, vector: SizeVector) -> None:
        """Nothing: there are no values."""

    def update_begins(self) -> None:
        """Nothing to order."""

    def update_ended(self) -> None:
        """Nothing to order."""


class NoOptimizer:
    """Steps that change nothing; see ``unisono.learner.replica.OptimizerAccess``."""

    def learning_rate(self) -> float:
        """None."""
        return 0.0

    def learning_rates(self) -> list[float]:
        """One group's."""
        return [0.0]

    def updater(self, parameters: Sequence[Any], values: Any, start: int) -> NoUpdater:
        """The same on a server's shard."""
        return NoUpdater()

    def restart(self) -> None:
        """There is no state."""

    def export(self) -> StateBundle:
        """There is no state."""
        return StateBundle()

    def take_over(self, bundle: StateBundle) -> None:
        """There is no state."""


class NoUpdater:
    """Steps of a server's shard that change nothing."""

    def step(self, gradient: Any, rates: Sequence[float]) -> None:
        """Nothing."""

    def state(self) -> StateBundle:
        """There is none."""
        return StateBundle()

    def load_state(self, bundle: StateBundle) -> None:
        """There is none."""


@dataclass
class Timing:
    """What a strategy's run took.

    Attributes:
        strategy: its name with its options.
        learners: how many.
        seconds: virtual, from when the first learners are all there, before they have the model,
            to the last one leaving.
        computing: share of the time that the learners were there.
        waiting: share of that time, for others and for minibatches.
        staleness: mean over updates; None where none was noted.
        bytes_sent: vectors, by all learners.
        minibatches: of each learner.
        computed_s: virtual seconds, of each learner.
        rounds: that a learner took part in, exchanges included; the mean.
    """

    strategy: str
    learners: int
    seconds: float
    computing: float
    waiting: float
    staleness: float | None
    bytes_sent: int
    minibatches: list[int]
    computed_s: list[float]
    rounds: float


def time_strategy(
    strategy: Strategy,
    *,
    name: str,
    learners: int,
    minibatches: int,
    batch_size: int,
    parameters: int,
    prefetch: int,
    cost: float,
    slowness: Mapping[int, float],
    spread: Mapping[int, float],
    network: Network,
    disturbances: Disturbances | None = None,
    on_compute: OnCompute | None = None,
) -> Timing:
    """Runs a strategy over so many minibatches, without computing anything.

    Args:
        strategy: with its settings.
        name: of the row.
        learners: how many.
        minibatches: of all learners together.
        batch_size: examples in each.
        parameters: numbers of 4 bytes in the model.
        prefetch: minibatches that a learner has leased ahead.
        cost: seconds of a minibatch.
        slowness: how many times longer it takes at some learners.
        spread: how much it varies at some learners.
        network: what messages cost.
        disturbances: what goes wrong.
        on_compute: told of each minibatch that was computed.

    Raises:
        UserError: no learner was left to finish.
    """
    begun, ended, stale = [], [], []
    waited = 0.0
    lives: list[tuple[float, float]] = []
    trained, rounds = [0] * learners, 0

    def loop() -> None:
        placement = find_placement()
        incarnation = 0
        while not live(placement, placement.node(address_at(placement, incarnation))):
            incarnation += 1  # it was presumed dead, and comes back

    def live(placement: Placement, fabric: Fabric) -> bool:
        """Trains to the end; False if the coordinator refuses the learner in this incarnation."""
        nonlocal waited
        task: Task[None] = Task(
            total=minibatches,
            batch_size=batch_size,
            load=lambda minibatch: None,
            examples=lambda minibatch: batch_size,
            prefetch=prefetch,
        )
        session = Session(
            fabric,
            strategy,
            SizeStorage(parameters),
            NoOptimizer(),
            task,
            timeout=placement.timeout,
        )
        stepper, began = session.stepper, fabric.now()
        try:
            begun.append(began)
            session.join()
            while (found := stepper.next()) is not None:
                computing = fabric.now()
                fabric.compute(lambda: None, placement.cost)
                if on_compute is not None:
                    on_compute(placement.number, computing, fabric.now())
                stepper.backward_done()
                stepper.update_begins()
                session.replica.begin_update()
                stepper.update_done()
                trained[placement.number] += not found[0].stand_in
            ended.append(fabric.now())
            session.leave()
        except (Cancelled, Refused) as end:
            if not isinstance(reason_of(end), Refused):
                raise
            fabric.close()
            return False
        finally:  # a learner that is killed, too
            lives.append((began, fabric.now()))
            waited += stepper.data_wait_s + session.participant.wait_s
        placement.close()
        return True

    def sink(event: dict[str, Any]) -> None:
        nonlocal rounds
        if event["event"] == "round":
            rounds += 1
            if "staleness" in event:
                stale.append(event["staleness"])

    with _rare_collections():
        run = run_loops(
            loop,
            learners=learners,
            cost=cost,
            slowness=slowness,
            spread=spread,
            network=network,
            disturbances=disturbances,
            limit=float("inf"),
            sink=sink,
            numerics=False,
        )
    if not ended:
        raise UserError(f"{name}: every learner died before the end; let some come back")
    first = learners - len(disturbances.late if disturbances else ())
    last = max(ended)
    seconds = last - max(sorted(begun)[:first])
    whole = max(sum(max(0.0, min(end, last) - begin) for begin, end in lives), 1e-9)
    return Timing(
        name,
        learners,
        seconds,
        sum(run.computed_s.values()) / whole,
        waited / whole,
        sum(stale) / len(stale) if stale else None,
        run.bytes_sent,
        trained,
        [run.computed_s.get(number, 0.0) for number in range(learners)],
        rounds / learners,
    )


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Inside, Python looks for cycles rarely: thousands of objects that stay, hardly any cycles."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
