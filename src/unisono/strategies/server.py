"""server, averaged-server: asynchronous SGD on a parameter server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from unisono.config import ScheduleChoice
from unisono.errors import UserError
from unisono.fabric import Precision
from unisono.strategies.base import Momentum, Replica, RoundPlan, Sharding, Strategy
from unisono.strategies.engines.accumulators import (
    Accumulator,
    ChangeAccumulator,
    GradientAccumulator,
)
from unisono.strategies.engines.server_worker import ServerParticipant
from unisono.strategies.options import check_shards


class PushKind(str, Enum):
    """What a push contains."""

    CHANGE = "change"
    """The change of the parameters by the learner's own optimizer steps since its last push."""
    GRADIENT = "gradient"
    """The mean gradient since its last push; the shards take the optimizer steps."""


MINIBATCHES = {PushKind.CHANGE: 8, PushKind.GRADIENT: 1}
"""In a push, unless ``push_every`` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Server(Strategy):
    """A parameter server: learners push what they learnt to shards, and pull what is there.

    The parameters x are cut into shards that servers, or the learners' own processes, hold. Nobody
    waits for another learner; a shard applies pushes as they come (Downpour SGD: Dean et al. 2012,
    https://papers.nips.cc/paper/4687-large-scale-distributed-deep-networks). ``push`` says what
    they contain:

    ``change``: each of L learners takes ``push_every`` steps with its own optimizer, from the model
    m that it pulled last to m + d, and

        x <- x + d / L.

    ``gradient``: a learner computes the mean g of ``push_every`` gradients at m, and the shards
    step with its learning rate a, by its own optimizer rebuilt on them,

        x <- x - a g(m).

    A delay of t pushes is stable on a quadratic of curvature h if a h < 2 sin(pi / (2 (2 t + 1))).
    """

    push: PushKind = PushKind.CHANGE
    """``change``: the change of the parameters by local steps; ``gradient``: the mean gradient."""
    push_every: int = 0
    """Minibatches in a push; 0: 8 with ``change``, 1 with ``gradient``."""
    overlap: bool = True
    """Whether learners compute on while a push is under way; off: they wait for its reply."""
    bound: int = 0
    """Staleness beyond which a push is dropped; 0: none is."""
    warm_start: float = 0.0
    """Share of all minibatches, at the start, that one learner trains by itself."""
    shards: int = 4
    """Pieces of the model; so many learners, or servers, hold one each. A push goes to them all."""
    precision: Precision = Precision.FLOAT32
    """Of updates and parameters on their way: ``float32``; ``bfloat16``, ``int8``, ``int4`` or
    ``1bit`` for a half, a quarter, an eighth or a 25th of the bytes."""

    name: ClassVar[str] = "server"
    paper: ClassVar[str] = "https://papers.nips.cc/paper/4687-large-scale-distributed-deep-networks"
    shares: ClassVar[str] = "updates and parameters; buffers stay each learner's own"
    has_shards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.push_every < 0:
            raise UserError(f"push_every is {self.push_every}: give minibatches, or 0 to choose")
        if self.push_every == 0:
            object.__setattr__(self, "push_every", MINIBATCHES[self.push])
        check_shards(self.shards)
        if self.bound < 0:
            raise UserError(f"bound is {self.bound}: it cannot be negative; 0 drops nothing")
        if not 0 <= self.warm_start < 1:
            raise UserError(f"warm_start is {self.warm_start}: it must be at least 0, less than 1")

    @property
    def waits(self) -> str:
        """Who waits for whom."""
        return "nobody" if self.overlap else "each for the reply to its own push"

    @property
    def momentum(self) -> Momentum:
        """Local steps keep it; at the shards asynchrony takes its place."""
        return Momentum.LOCAL if self.push is PushKind.CHANGE else Momentum.FOLDED

    @property
    def rate_rule(self) -> str:
        """What the user should do with the learning rate."""
        if self.push is PushKind.CHANGE:
            return super().rate_rule
        return "multiply by sin(pi / (2 (2 t + 1))), t the mean staleness; no momentum"

    def rate_factor(self, learners: int) -> float:
        """Changes: L for L learners. Gradients: a delay of t pushes lowers the stable rates.

        A change counts for 1/L in the model, as in an average.

        The limit of gradients is 2 sin(pi / (2 (2 t + 1))) / h on a quadratic of curvature h, and
        2 / h without a delay. With overlap 1 of ``push_every`` minibatches is a turn later than
        the others, so the mean delay counts. With momentum it is lower still: asynchrony is a
        momentum of its own.
        """
        if self.push is PushKind.CHANGE:
            return float(learners)
        delay = learners - 1 + (learners / self.push_every if self.overlap else 0)
        return math.sin(math.pi / (2 * (2 * delay + 1)))

    def staleness(self, learners: int) -> int:
        """Of a push of equal learners: the pushes of the others.

        With overlap its first minibatch is computed before the reply to the last push is here: a
        whole turn of all learners more.
        """
        return 2 * learners - 1 if self.overlap else learners - 1

    def round_plan(self, batch_size: int) -> RoundPlan:
        """Dynamic sharding; each commits by its own word."""
        return RoundPlan(
            Sharding.DYNAMIC,
            share=4 * self.push_every,
            rounds=1,
            commits_by_round=False,
            alone=self.warm_start,
        )

    def explain(self, learners: int) -> list[str]:
        """Who takes the steps, and the staleness to expect."""
        bound = f", dropped beyond {self.bound}" if self.bound else ""
        steps = (
            f"steps     the learners', {self.push_every} in a push, each push weighted 1/{learners}"
            if self.push is PushKind.CHANGE
            else "steps     the shards', by the learners' optimizer (ng-sgd: plain SGD steps with "
            "the learners' natural gradients)"
        )
        return [steps, f"staleness about {self.staleness(learners)} for equal learners{bound}"]

    def accumulator(self, replica: Replica) -> Accumulator:
        """What one learner collects for a push."""
        return (
            ChangeAccumulator(replica)
            if self.push is PushKind.CHANGE
            else GradientAccumulator(replica)
        )

    def participant(self, replica: Replica) -> ServerParticipant:
        """One learner's part."""
        return ServerParticipant(replica, self, self.accumulator(replica))


@dataclass(frozen=True, kw_only=True)
class AveragedServer(Server):
    """A parameter server whose shards keep the running mean of their iterates.

    From ``average_from`` on, after the t-th push since then has led to x_t,

        mean <- mean + (x_t - mean) / t.

    Validation and the final model use the mean; training never sees it. It is for training in one
    pass: the mean takes the place of a falling learning rate, so the rate is constant by default
    (You and Xu 2014, *Improving training time of deep neural network with asynchronous averaged
    stochastic gradient descent*; the theory: Xu 2011, https://arxiv.org/abs/1107.2490).
    """

    average_from: float = 0.7
    """Share of all minibatches after which the mean begins."""

    name: ClassVar[str] = "averaged-server"
    schedule: ClassVar[ScheduleChoice] = ScheduleChoice.CONSTANT

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.average_from <= 1:
            raise UserError(f"average_from is {self.average_from}: it must be between 0 and 1")

    @property
    def rate_rule(self) -> str:
        """What the user should do with the learning rate."""
        if self.push is PushKind.CHANGE:
            return "multiply by 2 L - 1 for L learners"
        return super().rate_rule

    def rate_factor(self, learners: int) -> float:
        """Changes: 2 L - 1 for L learners, as the mean takes out the noise of a higher rate.

        One learner keeps its own (docs/evidence/server.md).
        """
        return (
            2.0 * learners - 1.0 if self.push is PushKind.CHANGE else super().rate_factor(learners)
        )

    def explain(self, learners: int) -> list[str]:
        """Also where the mean begins."""
        start = f"{100 * self.average_from:g}% of the data"
        return [*super().explain(learners), f"mean      of the iterates after {start}"]

    def participant(self, replica: Replica) -> ServerParticipant:
        """One learner's part."""
        accumulator = self.accumulator(replica)
        return ServerParticipant(replica, self, accumulator, averages_from=self.average_from)
