"""solo: a plain loop, one learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unisono.events import UserError
from unisono.pool.pool import Deal
from unisono.strategies.base import Division, Participant, Replica, Terms, Work


class SoloParticipant(Participant):
    """Nobody to agree with: each update settles its own work."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._unsettled = Work()

    def enter(self, deal: Deal | None) -> bool:
        """Refuses company, and settles what was trained in the deal before."""
        if deal is not None and len(deal.members) > 1:
            raise UserError(
                f"solo is for one learner and there are {len(deal.members)}: "
                "choose another strategy, for example averaging"
            )
        self._settle()
        return True

    def after_update(self) -> None:
        """The update is the commit point."""
        self._unsettled.add(self.replica.take_work())

    def flush(self) -> None:
        """Settles."""
        self._settle()

    def _settle(self) -> None:
        if self._unsettled.ranges:
            self.client.tell("settle", notes={str(self.fabric.address): self._unsettled.note()})
            self.replica.record(settled=self._unsettled.note())
            self._unsettled = Work()


@dataclass(frozen=True, kw_only=True)
class Solo:
    """One learner, no sharing: the yardstick for all others."""

    name: ClassVar[str] = "solo"
    shares: ClassVar[str] = "nothing"
    waits: ClassVar[str] = "nobody"
    rate_rule: ClassVar[str] = "as it is"

    def rate_factor(self, learners: int) -> float:
        """One."""
        return 1.0

    def terms(self, batch_size: int) -> Terms:
        """Dealt, in blocks of some 16,000 examples."""
        rounds = max(16, 16384 // batch_size)
        return Terms(Division.DEALT, share=1, rounds=rounds, agrees=False)

    def participant(self, replica: Replica) -> SoloParticipant:
        """One learner's part."""
        return SoloParticipant(replica)
