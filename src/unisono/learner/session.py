"""One incarnation of a learner in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from unisono.coordinator.client import Client
from unisono.coordinator.job import Job
from unisono.coordinator.messages import Join, Leave, Mismatch, Open
from unisono.coordinator.status import Doing, Phase
from unisono.errors import UserError
from unisono.fabric import Fabric
from unisono.learner.link_rates import LinkRates
from unisono.learner.planner import Planner
from unisono.learner.replica import LearnerReplica, OptimizerAccess, Storage
from unisono.learner.stepper import Stepper
from unisono.learner.task import Task
from unisono.pool.ranges import merge
from unisono.strategies.base import Participant, Sharding, Strategy

T = TypeVar("T")


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
        self._link_rates = LinkRates(fabric)
        self.replica = LearnerReplica(storage, optimizers, fabric, self.client, log)
        self.participant: Participant = strategy.participant(self.replica)
        self.participant.rounds = task.sync_round
        self._strategy = strategy
        self._task = task
        round_plan = strategy.round_plan(task.batch_size)
        want = max(1, min(round_plan.share // 4, 16))
        planner = Planner(self.client, fabric, round_plan, task.checkpoint_every, want)
        self._round_plan = round_plan
        self.stepper: Stepper[T] = Stepper(self.replica, self.participant, planner, task)
        self.client.phase = self._phase

    @property
    def shares_nothing(self) -> bool:
        """Whether no other learner ever waits for this one, which may then stop at any step."""
        return (
            self._round_plan.sharding is Sharding.STATIC and not self._round_plan.commits_by_round
        )

    @property
    def links(self) -> list[dict[str, Any]]:
        return [
            {"receiver": to.name, "bytes": sent.bytes, "seconds": sent.seconds}
            for to, sent in sorted(self.fabric.traffic.items())
            if sent.bytes
        ]

    def _phase(self) -> Phase | None:
        """What the learner's own thread is doing, None for a server; called by another thread."""
        if self.fabric.address.serves:
            return None
        others, data = self.participant.waiting_since, self.stepper.waiting_since
        if others is not None:
            doing, since = Doing.OTHERS, others
        elif data is not None:
            doing, since = Doing.DATA, data
        else:
            doing, since = Doing.COMPUTING, self.stepper.computing_since
        return Phase(doing, self.fabric.now() - since, self._link_rates.slowest())

    def join(self) -> None:
        """Becomes a member, gets its state and begins to request minibatches."""
        self.enroll()
        self.stepper.start()

    def enroll(self) -> bool:
        """Becomes a member and opens the job; returns whether it is the first to do so."""
        self.client.call(
            Join(self.fabric.endpoint, self._task.metrics, *self._task.machine), "session"
        )
        job = Job(
            total=self._task.total,
            sharding=self._round_plan.sharding,
            pace=self._round_plan.pace or ((0, self._round_plan.share),),
            adaptive_pace=self._round_plan.adaptive_pace,
            rounds=self._round_plan.rounds,
            commits_by_round=self._round_plan.commits_by_round,
            fingerprint=f"{self._strategy!r} {self._task.fingerprint}",
            checkpoint_every=self._task.checkpoint_every,
            alone=round(self._round_plan.alone * self._task.total),
        )
        committed = merge(self._task.committed)
        opening = Open(job, committed, self._task.sync_round, self._digest())
        answer = self.client.call(opening, "session")
        if isinstance(answer, Mismatch):
            raise UserError(answer.reason)
        return answer.new

    def _digest(self) -> str:
        """Of the state that a donor would send at the start of a run; empty: not needed."""
        if self._task.single or self._task.sync_round > 0:
            return ""
        return self.replica.export(optimizer=self.participant.optimizer_travels).digest()

    def leave(self) -> None:
        """Leaves once all of this learner's work is committed."""
        self.stepper.finish()
        self.client.call(Leave(), "session")
