"""delay-by-one: the average of all models runs while the next gradient is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unisono.fabric import Address, Precision, Vector
from unisono.pool.pool import Assignment
from unisono.strategies.base import Replica, RoundPlan, Sharding, StateBundle, Strategy, TrainedWork
from unisono.strategies.engines.model_rounds import ModelRoundsParticipant
from unisono.strategies.engines.sync_rounds import Contribution


class DelayByOneParticipant(ModelRoundsParticipant):
    """Every step is a round, and its average is used one step later.

    With x_l^k the model of learner l after step k, n_l the examples of its minibatch, and mean^k
    the mean of the x_l^k weighted by the n_l,

        x_l^{k+1} = mean^k - a g_l(x_l^k):

    the average of step k runs while g_l is computed at x_l^k, and is added, as the difference
    mean^k - x_l^k, right after the step. A learner's own gradient is fresh, those of the others
    come one step late: their staleness is exactly one. On a quadratic of curvature h a step
    multiplies the mean by 1 - a h and the differences between learners by -a h: it is stable if
    a h < 1, half of the limit of synchronous SGD.

    It hides the time of an average behind computing, if there are cores for both, and waits for the
    slowest learner all the same, one step later: fastest among equals, no help against a slow one.
    """

    report_every = 16
    staleness = 1

    def __init__(self, replica: Replica, precision: Precision) -> None:
        super().__init__(replica, precision)
        self._under_way = False
        self._contribution: Contribution | None = None
        self._delta: Vector | None = None
        """The difference to be added with the next step."""

    def enter(self, assignment: Assignment | None) -> bool:
        """Newcomers begin with the donor's model and its pending difference."""
        self._wait()
        return super().enter(assignment)

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        """Waits for the last average before the step."""
        if not accumulate:
            self._wait()
            self._add_delta()

    def end_of_round(self, sync_round: int) -> None:
        self._wait()
        self._add_delta()  # still there if the learner had no minibatch in this round
        # Here and not beside the next forward, which changes the statistics of batch norm.
        self._contribution = super().contribute()
        self.begin_round(sync_round)
        self._under_way = True

    def contribute(self) -> Contribution:
        """The model right after the step."""
        assert self._contribution is not None
        return self._contribution

    def flush(self) -> None:
        """Waits for the average, and reports it."""
        self._wait()
        super().flush()

    def finish(self, leader: Address | None) -> None:
        """Ends with the last average; no step was taken since the models in it."""
        self._wait()
        if self._delta is not None:
            self.replica.replace(self.agreed)
            self._delta = None

    def consensus(self) -> Vector | None:
        """The average of the last step, the same at each learner."""
        self._wait()
        return super().consensus()

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        """Leaves the difference for the learner's thread."""
        with self.lock:
            self.agreed.assign(mean)
        contribution.vector.difference(mean, contribution.vector)
        self._delta = contribution.vector

    def restore(self, bundle: StateBundle) -> None:
        """Restores the difference: the saved parameters do not contain the last average yet."""
        self.load_state(bundle)
        delta = self.replica.export(optimizer=False).vectors["parameters"]
        delta.difference(self.agreed, delta)
        self._delta = delta

    def _add_delta(self) -> None:
        if self._delta is not None:
            self.replica.add(self._delta)
            self._delta = None

    def _wait(self) -> None:
        if self._under_way:
            self.await_round()
            self._under_way = False


@dataclass(frozen=True, kw_only=True)
class DelayByOne(Strategy):
    """Averaging of parameters at each step, overlapped with the next gradient."""

    precision: Precision = Precision.FLOAT32
    """Of changes as they are sent: ``float32``; ``bfloat16``, ``int8``, ``int4`` or ``1bit`` for
    1/2, 1/4, 1/8 or 1/25 of the bytes."""

    name: ClassVar[str] = "delay-by-one"
    paper: ClassVar[str] = "https://arxiv.org/abs/2110.11199"

    @property
    def waits(self) -> str:
        return "everybody for the slowest, one step late"

    def round_plan(self, batch_size: int) -> RoundPlan:
        return RoundPlan(Sharding.STATIC, share=1, rounds=64)

    def participant(self, replica: Replica) -> DelayByOneParticipant:
        return DelayByOneParticipant(replica, self.precision)
