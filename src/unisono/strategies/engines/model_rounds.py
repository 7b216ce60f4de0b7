"""Sync rounds of parameters: the base of strategies that average models."""

from __future__ import annotations

from unisono.fabric import Precision, Vector
from unisono.pool.pool import Assignment
from unisono.strategies.base import Replica, StateBundle, check_finite
from unisono.strategies.engines.sync_rounds import Contribution, SyncParticipant


class ModelRoundsParticipant(SyncParticipant):
    """Each learner contributes its parameters, weighted by its examples since the last round.

    ``agreed`` is the result of the last round, the same bits at every member: newcomers begin from
    it, and it is the consensus. A strategy overrides ``conclude``, which updates ``agreed`` (with
    ``lock`` held) and then moves the learner: with ``replica.add`` of the difference to its
    contribution or, where learners wait for the round, with ``replica.replace`` in
    ``end_of_round``. Further state that is kept from round to round, such as momentum, goes into
    ``memory``, and is sent and saved with ``agreed``.
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
        """The model of the last sync round; before the first, the model that the run began with."""
        assert self._agreed is not None
        return self._agreed

    def begin(self, agreed: Vector) -> None:
        """Sets ``agreed``. A strategy that needs ``memory`` makes it here."""
        self._agreed = agreed

    def enter(self, assignment: Assignment | None) -> bool:
        """Rounds begin from the parameters that all have now."""
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
        """Sets the parameters to ``agreed``: those saved may include later steps."""
        self.load_state(bundle)
        self.replica.replace(self.agreed)
