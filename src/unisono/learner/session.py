"""One life of a learner in a run: joined, fed, and gone again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from unisono.coordinator.client import Client
from unisono.events import UserError
from unisono.fabric import Fabric
from unisono.learner.plan import Planner
from unisono.learner.replica import LearnerReplica, OptimizerAccess, Storage
from unisono.learner.stepper import Stepper
from unisono.learner.task import Task
from unisono.strategies.base import Participant, Strategy

T = TypeVar("T")

__all__ = ["Session", "Task"]


class Session(Generic[T]):
    """A learner's node, client, participant and stepper, from ``join`` to ``leave``."""

    def __init__(
        self,
        fabric: Fabric,
        strategy: Strategy,
        storage: Storage,
        optimizers: OptimizerAccess,
        task: Task[T],
        *,
        timeout: float,
        heartbeats: bool = True,
        log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.fabric = fabric
        self.client = Client(fabric, timeout, heartbeats=heartbeats)
        self.replica = LearnerReplica(storage, optimizers, fabric, self.client, log)
        self.participant: Participant = strategy.participant(self.replica)
        self.participant.rounds = task.agreement
        self._strategy = strategy
        self._task = task
        terms = strategy.terms(task.batch_size)
        want = max(1, min(terms.share // 4, 16))
        planner = Planner(self.client, fabric.address, terms, task.checkpoint_every, want)
        self._terms = terms
        self.stepper: Stepper[T] = Stepper(self.replica, self.participant, planner, task)

    def join(self) -> None:
        """Becomes a member, gets its state and begins to plan."""
        self.enroll()
        self.stepper.start()

    def enroll(self) -> bool:
        """Becomes a member and says what it wants to train; whether it is the first to say it."""
        self.client.call("join", "session", endpoint=self.fabric.endpoint)
        job = {
            "total": self._task.total,
            "division": self._terms.division.value,
            "share": self._terms.share,
            "rounds": self._terms.rounds,
            "agrees": self._terms.agrees,
            "fingerprint": f"{self._strategy!r} {self._task.fingerprint}",
            "checkpoint_every": self._task.checkpoint_every,
            "alone": round(self._terms.alone * self._task.total),
        }
        settled = [list(r) for r in self._task.settled]
        answer = self.client.call(
            "open", "session", job=job, settled=settled, agreement=self._task.agreement
        )
        if answer["kind"] == "refused":
            raise UserError(answer["reason"])
        return bool(answer["new"])

    def leave(self) -> None:
        """Says goodbye once nothing of this learner is unsettled."""
        self.stepper.finish()
        self.client.call("leave", "session")
