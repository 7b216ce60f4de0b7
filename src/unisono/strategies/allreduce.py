"""allreduce: gradients are averaged at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unisono.fabric import Precision, Vector
from unisono.strategies.base import Replica, RoundPlan, Sharding, Strategy, TrainedWork
from unisono.strategies.engines.sync_rounds import Contribution, SyncParticipant


class AllReduceParticipant(SyncParticipant):
    """The gradients of all learners, weighted by their examples.

    With minibatches of ``n_i`` examples and losses that are means over them,

        g = sum_i (n_i / sum_j n_j) g_i

    is the gradient of the mean loss over all of them, so W learners with minibatch B take the steps
    of one learner with minibatch W B. A learner that has no minibatch in the last round computes
    on one of another learner, with weight 0.
    """

    report_every = 16
    optimizer_travels = True
    shares_gradients = True

    def __init__(self, replica: Replica, precision: Precision) -> None:
        super().__init__(replica, precision)
        self._gradient: Vector | None = None
        self._work = TrainedWork()
        self._mean: Vector | None = None

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        """Replaces the gradients by their mean, unless more are to be accumulated first."""
        self._work.add(work)
        if accumulate:
            self.rounds = sync_round + 1
            return
        self._gradient = self.replica.gradient()
        self.sync(sync_round)
        assert self._mean is not None
        self.replica.set_gradient(self._mean)

    def after_update(self) -> None:
        """Drops the work, which the sync round has reported already."""
        self.replica.take_work()

    def contribute(self) -> Contribution:
        """The gradients of this step; zero for a stand-in, also where all are stand-ins."""
        assert self._gradient is not None
        work, self._work = self._work, TrainedWork()
        if work.examples == 0:
            self._gradient.scale(0.0)
        return Contribution(self._gradient, work)

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        """Leaves the mean for the learner's thread, which waits for it."""
        self._mean = mean


@dataclass(frozen=True, kw_only=True)
class AllReduce(Strategy):
    """Synchronous SGD: every step uses the mean gradient of all learners."""

    precision: Precision = Precision.FLOAT32
    """Of gradients as they are sent: ``float32``; ``bfloat16``, ``int8``, ``int4`` or ``1bit`` for
    1/2, 1/4, 1/8 or 1/25 of the bytes."""

    name: ClassVar[str] = "allreduce"
    shares: ClassVar[str] = "gradients; buffers and optimizer state stay each learner's own"
    paper: ClassVar[str] = "https://arxiv.org/abs/1706.02677"

    @property
    def waits(self) -> str:
        return "everybody for the slowest, each step"

    def round_plan(self, batch_size: int) -> RoundPlan:
        return RoundPlan(Sharding.STATIC, share=1, rounds=64, lockstep=True)

    def participant(self, replica: Replica) -> AllReduceParticipant:
        return AllReduceParticipant(replica, self.precision)
