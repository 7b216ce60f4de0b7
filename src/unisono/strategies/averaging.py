"""averaging: each learner trains for a while, then parameters are averaged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unisono.errors import UserError
from unisono.fabric import Precision, Vector
from unisono.strategies.base import Replica, RoundPlan, Sharding, Strategy
from unisono.strategies.engines.error_feedback import Bounds
from unisono.strategies.engines.model_rounds import ModelRoundsParticipant
from unisono.strategies.engines.sync_rounds import Contribution
from unisono.strategies.every import AUTO, check_every, describe_every, plan_pace
from unisono.strategies.options import CHOICES, CODE_ONLY, EXAMPLES
from unisono.strategies.outer_steps import OUTERS, Outer, Plain
from unisono.strategies.selection import AllModels, Selection

MOST_FRAGMENTS = 256
"""Each is an exchange of its own: with many more a round takes longer than all of the training."""


class AveragingParticipant(ModelRoundsParticipant):
    """Rounds of local steps.

    With x_i the parameters of learner i at the end of a round and n_i the examples that it trained
    since the last one,

        mean = sum_i (n_i / sum_j n_j) x_i

    from which the outer step makes ``agreed``, s, where the next round starts. Static sharding: all
    wait for the round, and x_i = s. Dynamic sharding: learners compute meanwhile, and
    x_i = x_i + (s - snapshot_i), which keeps the steps made since the snapshot.

    In fragments there is still one snapshot, and one commit, per round: the learner moves to the
    mean of each fragment as it arrives, x_i = x_i + (mean - snapshot_i) on the fragment, and by the
    rest of the difference to s when the round is complete. With snapshots of different instants, a
    learner that dies could leave minibatches in only a part of the others' parameters.
    """

    def __init__(self, replica: Replica, settings: Averaging) -> None:
        super().__init__(replica, settings.precision, settings.fragments)
        self._settings = settings
        self.selection = settings.selection
        self._static = settings.sharding is Sharding.STATIC
        self._averaged = False
        """Whether ``agreed`` is the result of a round, not the model that all began with."""
        self._moved: Vector | None = None
        """By how much fragments of the current round have moved the learner."""

    def begin(self, agreed: Vector) -> None:
        super().begin(agreed)
        self._outer = self._settings.outer.begin(agreed)
        self.memory = self._outer.vectors

    def end_of_round(self, sync_round: int) -> None:
        """Static sharding: waits for the round, and takes over its result."""
        if self._static:
            self.sync(sync_round)
            self.replica.replace(self.agreed)
            if self._settings.restart_optimizer:
                self.replica.restart_optimizer()

    def conclude_fragment(self, mean: Vector, contribution: Contribution, part: Bounds) -> None:
        """Adds the fragment's difference, less what a broken attempt has added."""
        delta = contribution.vector.like()
        delta.difference(contribution.vector, contribution.vector)  # zero: they are finite
        if self._moved is None:
            self._moved = delta.copy()
        moved, change = self._moved.slice(*part), delta.slice(*part)
        change.difference(mean, contribution.vector.slice(*part))
        change.add(moved, -1.0)
        moved.add(change)
        self.replica.add(delta)

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        """Takes the outer step; dynamic sharding: adds the difference to the learner."""
        with self.lock:
            self._outer.advance(self.agreed, mean, self.replica.learning_rate(), members)
            self._averaged = True
        if not self._static:
            contribution.vector.difference(self.agreed, contribution.vector)
            if self._moved is not None:
                contribution.vector.add(self._moved, -1.0)
                self._moved = None
            self.replica.add(contribution.vector)

    def consensus(self) -> Vector | None:
        """The model of the last round that the outer step hands out."""
        with self.lock:
            if self._agreed is None or not (self._averaged or self.rounds > 0):
                return None  # Nothing was shared yet: the learner's own model is newer.
            return self._outer.consensus(self._agreed).copy()


@dataclass(frozen=True, kw_only=True)
class Averaging(Strategy):
    """Periodic averaging of parameters (Kaldi; local SGD), with a choice of outer steps."""

    every: int | str = field(default=AUTO, metadata=EXAMPLES)
    """Examples per learner between two averages (whole minibatches); ``auto``: by cost."""
    sharding: Sharding = Sharding.DYNAMIC
    """``dynamic``: nobody waits, and a round ends when the learners have trained its quota;
    ``static``: a round waits for its slowest learner, and runs are repeatable bit for bit."""
    outer: Outer = field(default_factory=Plain, metadata={CHOICES: OUTERS})
    """``plain``, ``block-momentum``, ``slowmo`` or ``nesterov``."""
    restart_optimizer: bool = False
    """Whether the optimizer's state is reset after each round (static sharding)."""
    precision: Precision = Precision.FLOAT32
    """Of changes as they are sent: ``float32``; ``bfloat16``, ``int8``, ``int4`` or ``1bit`` for
    1/2, 1/4, 1/8 or 1/25 of the bytes."""
    fragments: int = 1
    """Parts in which the model is averaged, one after the other, spread over the time until the
    next round (dynamic sharding); divides the peak traffic by so many."""
    selection: Selection = field(default_factory=AllModels, metadata=CODE_ONLY)
    """Whose models go into the mean; set in code, or for a run by `recipe.*`."""

    name: ClassVar[str] = "averaging"
    paper: ClassVar[str] = "https://arxiv.org/abs/1410.7455"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_every(self.every)
        if self.restart_optimizer and self.sharding is not Sharding.STATIC:
            raise UserError("restart_optimizer needs rounds of all learners: set sharding=static")
        if not 1 <= self.fragments <= MOST_FRAGMENTS:
            raise UserError(
                f"fragments is {self.fragments}: give a number from 1 to {MOST_FRAGMENTS}"
            )
        if self.fragments > 1 and self.sharding is Sharding.STATIC:
            raise UserError(
                "fragments spread a round over the computing after it, and with static sharding "
                "everybody waits for the round: set sharding=dynamic, or fragments=1"
            )

    @property
    def waits(self) -> str:
        if self.sharding is Sharding.DYNAMIC:
            return "nobody"
        return f"everybody for the slowest, {describe_every(self.every)}"

    @property
    def rate_rule(self) -> str:
        if self.rate_factor(2) == super().rate_factor(2):
            return super().rate_rule
        return "multiply by the number of learners over the gain of the outer step"

    def rate_factor(self, learners: int) -> float:
        """A step counts for 1/learners in the mean, and for ``gain`` times that after outer steps.

        So on a steady gradient a round of n learners moves as far as n rounds of one.
        """
        return learners / self.outer.gain(learners)

    def round_plan(self, batch_size: int) -> RoundPlan:
        return RoundPlan(self.sharding, rounds=2, **plan_pace(self.every, batch_size))

    def participant(self, replica: Replica) -> AveragingParticipant:
        return AveragingParticipant(replica, self)
