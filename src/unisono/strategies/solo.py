"""solo: a plain loop, one learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unisono.coordinator.messages import Commit
from unisono.errors import UserError
from unisono.pool.pool import Assignment
from unisono.strategies.base import Participant, Replica, RoundPlan, Sharding, Strategy, TrainedWork


class SoloParticipant(Participant):
    """No sharing: each update commits its own work."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._uncommitted = TrainedWork()

    def enter(self, assignment: Assignment | None) -> bool:
        """Refuses a second learner, and commits the work of the previous assignment."""
        if assignment is not None and len(assignment.members) > 1:
            raise UserError(
                f"solo is for one learner and there are {len(assignment.members)}: "
                "choose another strategy, for example averaging"
            )
        self._commit()
        return True

    def after_update(self) -> None:
        """The update is the commit point."""
        self._uncommitted.add(self.replica.take_work())

    def flush(self) -> None:
        self._commit()

    def _commit(self) -> None:
        if self._uncommitted.ranges:
            self.client.tell(Commit({self.fabric.address: self._uncommitted.note()}))
            self.replica.record(committed=self._uncommitted.note())
            self._uncommitted = TrainedWork()


@dataclass(frozen=True, kw_only=True)
class Solo(Strategy):
    """One learner, no sharing: the baseline for all others."""

    name: ClassVar[str] = "solo"
    shares: ClassVar[str] = "nothing"

    @property
    def waits(self) -> str:
        return "nobody"

    @property
    def rate_rule(self) -> str:
        return "as it is"

    def rate_factor(self, learners: int) -> float:
        return 1.0

    def round_plan(self, batch_size: int) -> RoundPlan:
        """Static sharding, in blocks of some 16,000 examples."""
        rounds = max(16, 16384 // batch_size)
        return RoundPlan(Sharding.STATIC, share=1, rounds=rounds, commits_by_round=False)

    def participant(self, replica: Replica) -> SoloParticipant:
        return SoloParticipant(replica)
