"""Sync rounds on whole models: what is common to strategies that average parameters."""

from __future__ import annotations

from unisono.fabric import Precision, Vector
from unisono.pool.pool import Assignment
from unisono.strategies.base import Replica, StateBundle, check_finite
from unisono.strategies.engines.sync_rounds import Contribution, SyncParticipant


class ModelRoundsParticipant(SyncParticipant):
    """Each learner contributes its parameters, weighted by the examples trained since the last one.

    ``agreed`` is the model that all agreed on last, the same bits at every member: newcomers begin
    from it, and it is the consensus. A strategy overrides ``conclude``: it moves ``agreed`` (with
    ``lock`` held), and then its learner, by ``replica.add`` of a difference to the contribution;
    or, if it is sharded statically and waits for the round, by ``replica.replace`` in
    ``end_of_round``. What else it remembers from round to round goes into ``memory``, and travels
    with ``agreed``.
    """

    def __init__(
        self, replica: Replica, precision: Precision = Precision.FLOAT32, fragments: int = 1
    ) -> None:
        super().__init__(replica, precision, fragments)
        self.lock = self.fabric.lock()
        self.memory: dict[str, Vector] = {}
        self._agreed: Vector | None = None

    @property
    def agreed(self) -> Vector:
        """The model of the last sync round; at first that with which the run began."""
        assert self._agreed is not None
        return self._agreed

    def begin(self, agreed: Vector) -> None:
        """``agreed`` is known. A strategy with a memory makes it here."""
        self._agreed = agreed

    def enter(self, assignment: Assignment | None) -> bool:
        """The first round starts from the parameters that everybody has now."""
        if self._agreed is None:
            self.begin(self.replica.export(optimizer=False).vectors["parameters"])
        return super().enter(assignment)

    def contribute(self) -> Contribution:
        snapshot = self.replica.snapshot()
        check_finite(self.replica, snapshot.vector, self.rounds)
        return Contribution(snapshot.vector, snapshot.work)

    def common(self) -> Vector | None:
        return self.agreed

    def consensus(self) -> Vector | None:
        """The model of the last sync round, before any local step on it."""
        with self.lock:
            return None if self._agreed is None else self._agreed.copy()

    def state(self) -> StateBundle:
        bundle = super().state()
        with self.lock:
            vectors = {"agreed": self.agreed, **self.memory}
            bundle.vectors |= {name: vector.copy() for name, vector in vectors.items()}
        return bundle

    def load_state(self, bundle: StateBundle) -> None:
        super().load_state(bundle)
        with self.lock:
            self.begin(bundle.vectors["agreed"])
            for name, vector in self.memory.items():
                vector.assign(bundle.vectors[name])

    def restore(self, bundle: StateBundle) -> None:
        """A learner's own parameters may be later than the sync round; all begin from that."""
        self.load_state(bundle)
        self.replica.replace(self.agreed)
