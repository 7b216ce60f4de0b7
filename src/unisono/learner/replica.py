"""The learner as its strategy sees it: parameters, pending deltas and trained work in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from unisono.coordinator.client import Client
from unisono.coordinator.status import whose
from unisono.fabric import Fabric, Vector
from unisono.strategies.base import Snapshot, StateBundle, TrainedWork, Updater


class Storage(Protocol):
    """Holds the parameters: a torch model's, a toy model's, or only their size."""

    @property
    def parameters(self) -> Sequence[Any]:
        """The parameters, in the order of the vector."""

    def new(self) -> Any:
        """A vector of the model's size."""

    def recycle(self, vector: Any) -> None:
        """Gives a vector back that nobody uses any more."""

    def read(self, vector: Any) -> Callable[[], None]:
        """Copies the parameters into the vector."""

    def write(self, vector: Any, *, frozen: bool = False) -> None:
        """Copies the vector into the parameters, into frozen ones only if asked to."""

    def add(self, vector: Any) -> None:
        """Adds the vector to the parameters."""

    def read_gradient(self) -> Any:
        """The gradients as a vector."""

    def add_gradient(self, total: Any, factor: float) -> None:
        """Adds the gradients, times a factor, to a vector."""

    def read_parameters(self) -> Any:
        """The parameters, without buffers, as a vector."""

    def write_gradient(self, vector: Any) -> None:
        """Sets the gradients."""

    def update_begins(self) -> None:
        """The optimizer is about to write parameters."""

    def update_ended(self) -> None:
        """Parameters are constant again."""


class OptimizerAccess(Protocol):
    """What a strategy may know of the learner's optimizers."""

    def learning_rate(self) -> float:
        """The first group's current rate."""

    def learning_rates(self) -> list[float]:
        """Those of all groups."""

    def updater(self, parameters: Sequence[Any], values: Any, start: int) -> Updater:
        """The optimizers, rebuilt on a slice of the vector of the parameters."""

    def restart(self) -> None:
        """Forgets momentum and the like."""

    def export(self) -> StateBundle:
        """The optimizers' state."""

    def take_over(self, bundle: StateBundle) -> None:
        """The inverse of ``export``."""


class LearnerReplica:
    """Implements ``Replica``.

    Writing happens between ``begin_update`` and ``end_update`` only, on the learner's thread, with
    the lock held; a snapshot takes the lock, too. So what it sees is always parameters after a
    whole update, and ``parameters + pending`` is what they will be when all deltas are in.
    """

    def __init__(
        self,
        storage: Storage,
        optimizers: OptimizerAccess,
        fabric: Fabric,
        client: Client,
        log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.fabric = fabric
        self.client = client
        self._storage = storage
        self._optimizers = optimizers
        self._log = log
        self._lock = fabric.lock()
        self._pending: Vector | None = None
        self._pending_is_read = False
        self._trained = TrainedWork()
        self._updating = False
        self._own: Vector | None = None
        self.is_showing = False
        """Whether the model is to be looked at only, and may hold other parameters."""
        self.reached = 0.0
        """The share of all minibatches that were handed out when the current one was."""

    # The learner's thread.

    @contextmanager
    def showing(self, value: Vector | None) -> Iterator[None]:
        """A context to look at the model in, without an update of it.

        The model holds ``value``, or, with None, the learner's own parameters, which others see in
        either case.
        """
        self.is_showing = True
        try:
            with nullcontext() if value is None else self._holding(value):
                yield
        finally:
            self.is_showing = False

    @contextmanager
    def _holding(self, value: Vector) -> Iterator[None]:
        with self._lock:
            own: Vector = self._storage.new()
            self._storage.read(own)()
            self._write(value)
            self._own = own
        try:
            yield
        finally:
            with self._lock:
                self._write(own)
                self._own = None

    def begin_update(self) -> None:
        """The optimizer is about to step."""
        if not self._updating:
            self._lock.__enter__()
            self._updating = True
            self._storage.update_begins()

    def end_update(self, work: TrainedWork) -> None:
        """The optimizer has stepped on ``work``: pending deltas are added."""
        self.begin_update()
        self._trained.add(work)
        if self._pending is not None:
            self._storage.add(self._pending)
            if not self._pending_is_read:
                self._storage.recycle(self._pending)
            self._pending, self._pending_is_read = None, False
        self.abort_update()

    def abort_update(self) -> None:
        if self._updating:
            self._storage.update_ended()
            self._updating = False
            self._lock.__exit__(None, None, None)

    def replace(self, value: Vector) -> None:
        """Sets the parameters; pending deltas are in the value already."""
        with self._lock:
            self._write(value)
            self._pending, self._pending_is_read = None, False

    def gradient(self) -> Vector:
        vector: Vector = self._storage.read_gradient()
        return vector

    def add_gradient(self, total: Vector, factor: float) -> None:
        self._storage.add_gradient(total, factor)

    def set_gradient(self, value: Vector) -> None:
        self._storage.write_gradient(value)

    def restart_optimizer(self) -> None:
        self._optimizers.restart()

    def take_over(self, bundle: StateBundle) -> None:
        with self._lock:
            self._write(bundle.vectors.pop("parameters"), frozen=True)
        if bundle.vectors:
            self._optimizers.take_over(bundle)

    # Any thread.

    def snapshot(self) -> Snapshot:
        with self._lock:
            finish = self._begin_read()
            work, self._trained = self._trained, TrainedWork()
        return Snapshot(finish(), work)

    def take_work(self) -> TrainedWork:
        with self._lock:
            work, self._trained = self._trained, TrainedWork()
            return work

    def add(self, delta: Vector) -> None:
        with self._lock:
            if self._pending is not None:
                # Not the other way round: a snapshot may still be reading the pending delta.
                delta.add(self._pending)
            self._pending, self._pending_is_read = delta, False

    def recycle(self, vector: Vector) -> None:
        with self._lock:
            self._storage.recycle(vector)

    def learning_rate(self) -> float:
        return self._optimizers.learning_rate()

    def learning_rates(self) -> list[float]:
        return self._optimizers.learning_rates()

    def parameters(self) -> Vector:
        vector: Vector = self._storage.read_parameters()
        return vector

    def updater(self, values: Vector, start: int) -> Updater:
        return self._optimizers.updater(self._storage.parameters, values, start)

    def progress(self) -> float:
        return self.reached

    def export(self, *, optimizer: bool) -> StateBundle:
        bundle = self._optimizers.export() if optimizer else StateBundle()
        with self._lock:
            finish = self._begin_read()
        bundle.vectors["parameters"] = finish()
        return bundle

    def event(self, name: str, **fields: Any) -> None:
        self.client.event(name, **whose(self.fabric.address), **fields)

    def record(self, **fields: Any) -> None:
        if self._log is not None:
            self._log({"who": str(self.fabric.address), **fields})

    def _write(self, value: Vector, *, frozen: bool = False) -> None:
        self._storage.update_begins()
        self._storage.write(value, frozen=frozen)
        self._storage.update_ended()

    def _begin_read(self) -> Callable[[], Vector]:
        """Begins a snapshot; copying may continue after the lock is released."""
        vector: Vector = self._storage.new()
        if self._own is None:
            finish = self._storage.read(vector)
        else:
            vector.assign(self._own)
            finish = lambda: None  # noqa: E731
        pending = self._pending
        self._pending_is_read = pending is not None

        def rest() -> Vector:
            finish()
            if pending is not None:
                vector.add(pending)
            return vector

        return rest
