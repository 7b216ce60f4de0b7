"""server, averaged-server: asynchronous SGD on a pool of parameter shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from unisono.errors import UserError
from unisono.strategies.base import Momentum, Replica, RoundPlan, Sharding, Strategy
from unisono.strategies.engines.server_worker import ServerParticipant


@dataclass(frozen=True, kw_only=True)
class Server(Strategy):
    """Learners push gradients to shards, which apply them as they come, and pull what is there."""

    push_every: int = 4
    """Minibatches whose gradients are averaged before they are pushed."""
    overlap: bool = True
    """Whether learners compute on while a push is under way; off: they wait for its reply."""
    bound: int = 0
    """Staleness beyond which a push is dropped; 0: none is."""
    warm_start: float = 0.0
    """Share of all minibatches, at the start, that one learner trains by itself."""
    shards: int = 4
    """Pieces of the model; so many learners hold one each. A push is a message to each of them."""

    name: ClassVar[str] = "server"
    paper: ClassVar[str] = "https://papers.nips.cc/paper/4687-large-scale-distributed-deep-networks"
    momentum: ClassVar[Momentum] = Momentum.FOLDED
    shares: ClassVar[str] = "gradients and parameters; buffers stay each learner's own"

    def __post_init__(self) -> None:
        if self.push_every < 1:
            raise UserError(f"push_every is {self.push_every}: at least one minibatch a push")
        if self.shards < 1:
            raise UserError(f"shards is {self.shards}: there must be at least one")
        if self.bound < 0:
            raise UserError(f"bound is {self.bound}: it cannot be negative; 0 drops nothing")
        if not 0 <= self.warm_start < 1:
            raise UserError(f"warm_start is {self.warm_start}: it must be at least 0, less than 1")

    @property
    def waits(self) -> str:
        """Who waits for whom."""
        return "nobody" if self.overlap else "each for the reply to its own push"

    @property
    def rate_rule(self) -> str:
        """What the user should do with the learning rate."""
        return "multiply by sin(pi / (2 (2 t + 1))), t the mean staleness; no momentum"

    def rate_factor(self, learners: int) -> float:
        """A delay of t pushes lowers the limit of stable rates.

        That limit is 2 sin(pi / (2 (2 t + 1))) / h on a quadratic of curvature h, and 2 / h without
        a delay. With overlap 1 of ``push_every`` minibatches is a turn later than the others, so
        the mean delay counts. With momentum it is lower still: asynchrony is a momentum of its own.
        """
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
        """The staleness to expect."""
        bound = f", dropped beyond {self.bound}" if self.bound else ""
        return [f"staleness about {self.staleness(learners)} for equal learners{bound}"]

    def participant(self, replica: Replica) -> ServerParticipant:
        """One learner's part."""
        return ServerParticipant(replica, self, averages_from=None)


@dataclass(frozen=True, kw_only=True)
class AveragedServer(Server):
    """The same; the shards keep the running mean of their iterates, for training in one pass."""

    average_from: float = 0.5
    """Share of all minibatches after which the mean begins."""

    name: ClassVar[str] = "averaged-server"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.average_from <= 1:
            raise UserError(f"average_from is {self.average_from}: it must be between 0 and 1")

    def participant(self, replica: Replica) -> ServerParticipant:
        """One learner's part."""
        return ServerParticipant(replica, self, averages_from=self.average_from)
