"""elastic: learners keep their own parameters, which are attracted to a shared centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from unisono.errors import UserError
from unisono.fabric import Precision, Vector
from unisono.strategies.base import (
    Replica,
    RoundPlan,
    Sharding,
    StateBundle,
    Strategy,
    Updater,
    check_finite,
)
from unisono.strategies.engines.server_worker import ServerParticipant
from unisono.strategies.options import check_shards


@dataclass
class Centre:
    """A shard of the centre c: a push of x with the moving rate a leads to c + a (x - c)."""

    values: Vector

    def step(self, gradient: Vector, rates: Sequence[float]) -> None:
        self.values.scale(1 - rates[0])
        self.values.add(gradient, rates[0])

    def state(self) -> StateBundle:
        return StateBundle()

    def load_state(self, bundle: StateBundle) -> None:
        """There is none."""


class ElasticAccumulator:
    """Pushes a learner's own parameters.

    The reply to a push of x is the centre after it, c' = c + a (x - c), so the learner knows how
    far the centre has moved and goes back by the same:

        d = a (x - c) = a / (1 - a) (x - c'),    x <- x - d,

    which keeps steps taken meanwhile. The sum of centre and learner is preserved.
    """

    steps_locally = True

    def __init__(self, replica: Replica, beta: float) -> None:
        self._replica = replica
        self._beta = beta
        self._pushed: Vector | None = None
        self._moving_rate = 0.0
        self._begun = False

    def add(self, examples: int) -> None:
        self._begun = True

    def take(self, model: Vector, share: float, rounds: int) -> Vector:
        self._pushed = self._replica.parameters()
        self._moving_rate = self._beta * share
        check_finite(self._replica, self._pushed, rounds)
        return self._pushed.copy()

    def rates(self, share: float) -> Sequence[float]:
        """The moving rate: all learners together move the centre by ``beta`` of the way."""
        return (self._beta * share,)

    def updater(self, values: Vector, start: int) -> Updater:
        return Centre(values)

    def pull(self, model: Vector) -> None:
        """Moves towards the centre; a learner that has not trained yet begins from it."""
        pushed, self._pushed = self._pushed, None
        if pushed is not None:
            a = self._moving_rate
            pushed.difference(model, pushed)
            x = self._replica.parameters()
            x.add(pushed, a / (1 - a))
            self._replica.replace(x)
            self._replica.recycle(x)
            self._replica.recycle(pushed)
        elif not self._begun:
            self._replica.replace(model)


@dataclass(frozen=True, kw_only=True)
class Elastic(Strategy):
    """Asynchronous elastic averaging SGD (EASGD: Zhang, Choromanska and LeCun 2015).

    Each of L learners takes steps on parameters x_i of its own. After every ``push_every`` of them
    it exchanges with the centre c, which lies in shards with the learners:

        d = a (x_i - c),    x_i <- x_i - d,    c <- c + d,    a = beta / L.

    An exchange preserves c + sum_i x_i. The centre is the consensus; learners are never reset to
    it, so that they keep exploring. The paper's a is the moving rate (its learning rate
    times rho), and 0.9 its choice of beta.
    """

    push_every: int = 8
    """Minibatches between two exchanges of a learner with the centre (tau in the paper)."""
    beta: float = 0.9
    """How far the exchanges of all learners move the centre towards them; above 0, below 1."""
    overlap: bool = True
    """Whether learners compute while an exchange is under way; off: they wait for it."""
    shards: int = 4
    """Pieces of the centre, each held by one server or learner."""

    name: ClassVar[str] = "elastic"
    paper: ClassVar[str] = "https://arxiv.org/abs/1412.6651"
    shares: ClassVar[str] = "parameters, with the centre; buffers and optimizer state stay local"
    has_shards: ClassVar[bool] = True
    bound: ClassVar[int] = 0
    precision: ClassVar[Precision] = Precision.FLOAT32
    warm_start: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.push_every < 1:
            raise UserError(f"push_every is {self.push_every}: give at least one minibatch")
        if not 0 < self.beta < 1:
            raise UserError(f"beta is {self.beta}: it must be above 0 and below 1")
        check_shards(self.shards)

    @property
    def waits(self) -> str:
        return "nobody" if self.overlap else "each for the reply of the centre"

    def staleness(self, learners: int) -> int:
        """How many exchanges of others take place between two of one learner."""
        return 2 * learners - 1 if self.overlap else learners - 1

    def round_plan(self, batch_size: int) -> RoundPlan:
        share = 4 * self.push_every
        return RoundPlan(Sharding.DYNAMIC, share=share, rounds=1, commits_by_round=False)

    def explain(self, learners: int) -> list[str]:
        return [
            f"centre    moves by {self.beta / learners:.3g} of the way to a learner that pushes"
        ]

    def participant(self, replica: Replica) -> ServerParticipant:
        return ServerParticipant(replica, self, ElasticAccumulator(replica, self.beta))
