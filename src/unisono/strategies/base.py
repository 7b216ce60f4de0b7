"""What a strategy is, and what it sees of its learner.

A strategy is two classes: a frozen, keyword-only dataclass of its settings, which a user names or
makes, and a *participant*, which is one learner's part in it. The participant's hooks run on the
learner's own thread; whatever must go on beside computing is an activity that it spawns. It sees
its learner as a ``Replica`` and the others through the fabric; it never touches torch.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Protocol

from unisono.config import ScheduleChoice
from unisono.coordinator.client import Client
from unisono.coordinator.job import Sharding as Sharding
from unisono.coordinator.messages import Failed
from unisono.coordinator.pace import PaceSchedule
from unisono.errors import Diverged
from unisono.fabric import Address, Fabric, Vector
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Range, Ranges, merge
from unisono.strategies.every import divide
from unisono.strategies.mixing import Mixing
from unisono.strategies.options import CODE_ONLY as CODE_ONLY
from unisono.strategies.options import EXAMPLES as EXAMPLES
from unisono.strategies.options import UNIT, checked_option


@dataclass(frozen=True)
class RoundPlan:
    """How a strategy wants its learners fed, in minibatches."""

    sharding: Sharding
    share: int
    """Minibatches a learner between two sync rounds (the first, where it changes)."""
    rounds: int
    """Rounds in an assignment."""
    pace: PaceSchedule = ()
    """Where it changes: minibatches a learner, by the number of the round."""
    adaptive_pace: bool = False
    """Whether it is chosen by the measured cost of rounds."""
    commits_by_round: bool = True
    """Whether sync rounds of all commit the work, or each learner's own word."""
    lockstep: bool = False
    """Whether every learner must make every step, also one for which it has no minibatch."""
    alone: float = 0.0
    """Dynamic sharding: the share of all minibatches that one learner trains alone at first."""


@dataclass
class TrainedWork:
    """What a learner has trained: positions, and how many examples they held."""

    ranges: list[Range] = field(default_factory=list)
    examples: int = 0

    def add(self, other: TrainedWork) -> None:
        for start, stop in other.ranges:
            if self.ranges and self.ranges[-1][1] == start:
                self.ranges[-1] = (self.ranges[-1][0], stop)
            else:
                self.ranges.append((start, stop))
        self.examples += other.examples

    def note(self) -> Ranges:
        """The positions, for others."""
        return merge(self.ranges)


@dataclass
class Snapshot:
    """Parameters plus pending deltas at one instant, and the work in them since the last one."""

    vector: Vector
    work: TrainedWork


@dataclass
class StateBundle:
    """State that travels or is kept: plain values and named vectors."""

    plain: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)

    def digest(self) -> str:
        parts = [repr(sorted(self.plain.items()))]
        parts += [f"{name} {vector.digest()}" for name, vector in sorted(self.vectors.items())]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


class Updater(Protocol):
    """An optimizer on a slice of the parameters, away from the learner."""

    def step(self, gradient: Vector, rates: Sequence[float]) -> None:
        """Takes a step on the slice, with the learning rate of each parameter group."""

    def state(self) -> StateBundle:
        """Momentum and the like."""

    def load_state(self, bundle: StateBundle) -> None:
        """The inverse of ``state``."""


class Replica(Protocol):
    """A learner, as its strategy sees it."""

    @property
    def fabric(self) -> Fabric:
        """The learner's node."""

    @property
    def client(self) -> Client:
        """The learner's side of the coordinator."""

    def snapshot(self) -> Snapshot:
        """Takes parameters plus pending deltas, with the work that they contain; any thread."""

    def add(self, delta: Vector) -> None:
        """Hands in a delta; the learner's own thread adds it in its next update; any thread."""

    def replace(self, value: Vector) -> None:
        """Sets the parameters; own thread, and only if no step lies between snapshot and value.

        A vector of the parameters alone leaves the buffers as they are.
        """

    def take_work(self) -> TrainedWork:
        """The trained work that no snapshot has taken yet; for strategies that share gradients."""

    def gradient(self) -> Vector:
        """A copy of the gradients; own thread, after backward."""

    def add_gradient(self, total: Vector, factor: float) -> None:
        """``total = total + factor * gradients``; own thread, after backward."""

    def recycle(self, vector: Vector) -> None:
        """Gives back a vector of the replica's that nobody uses any more; any thread."""

    def set_gradient(self, value: Vector) -> None:
        """Sets the gradients that the optimizer will step with; own thread."""

    def learning_rate(self) -> float:
        """The first parameter group's current learning rate."""

    def learning_rates(self) -> list[float]:
        """Those of all parameter groups."""

    def parameters(self) -> Vector:
        """A copy of the parameters alone, in the order of the gradients; own thread."""

    def updater(self, values: Vector, start: int) -> Updater:
        """The learner's optimizer, rebuilt on ``values``: the parameters from ``start`` on."""

    def progress(self) -> float:
        """The share of all minibatches that were handed out when the current one was, 0 to 1."""

    def restart_optimizer(self) -> None:
        """Forgets the optimizer's state (momentum and the like); own thread."""

    def export(self, *, optimizer: bool) -> StateBundle:
        """The learner's whole state for a newcomer; own thread, or any with ``optimizer`` off."""

    def take_over(self, bundle: StateBundle) -> None:
        """The inverse of ``export``; own thread."""

    def event(self, name: str, **fields: Any) -> None:
        """A line for the metrics."""

    def record(self, **fields: Any) -> None:
        """A line for the learner's own log, from which coverage can be rebuilt."""


class Participant:
    """One learner's part in a strategy. The hooks do nothing unless a strategy overrides them.

    A learner that begins a run with the same parameters as the first one gets no state of it: what
    a participant is made with must be the same for all.
    """

    optimizer_travels = False
    """Whether a newcomer needs the optimizer state of the others, too."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.fabric = replica.fabric
        self.client = replica.client
        self.rounds = 0
        self.wait_s = 0.0
        """Seconds that the learner's own thread waited for others."""
        self.waiting_since: float | None = None
        """When it began to wait for others, while it does."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, the learner's own thread waits for others."""
        began = self.waiting_since = self.fabric.now()
        try:
            yield
        finally:
            self.wait_s += self.fabric.now() - began
            self.waiting_since = None

    def start(self) -> None:
        """Before the first minibatch; the learner has joined. May spawn activities."""

    def enter(self, assignment: Assignment | None) -> bool:
        """A new assignment begins, or the learner begins (None: dynamic sharding).

        Newcomers get their state here.

        Returns False if the run was over before the learner could get in.
        """
        return True

    def before_minibatch(self) -> None:
        """A minibatch is about to be trained."""

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        """Gradients are there; with static sharding they belong to round ``sync_round``."""

    def before_update(self) -> bool:
        """The optimizer is about to step; False: the strategy steps for it, somewhere else."""
        return True

    def after_update(self) -> None:
        """The optimizer has stepped, and pending deltas were added."""

    def end_of_round(self, sync_round: int) -> None:
        """Static sharding: this learner has trained its part of the round."""

    def flush(self) -> None:
        """There is no lease to be had while some are uncommitted: share what was trained."""

    def finish(self, leader: Address | None) -> None:
        """Everything is committed, and ``leader`` sees to the model; called before leaving."""

    def consensus(self) -> Vector | None:
        """The one model that the strategy hands out; None: the learner's own parameters."""
        return None

    def state(self) -> StateBundle:
        """What must be in a checkpoint, and what a newcomer needs."""
        return StateBundle()

    def load_state(self, bundle: StateBundle) -> None:
        """The inverse of ``state``."""

    def restore(self, bundle: StateBundle) -> None:
        """As ``load_state``, from a checkpoint or a donor: the parameters may have to follow."""
        self.load_state(bundle)

    def take_checkpoint(self) -> tuple[int, StateBundle] | None:
        """Dynamic sharding: the sync round that is to be kept and the state at it, once."""
        return None


def check_finite(replica: Replica, model: Vector, rounds: int) -> None:
    """Nothing of a learner that has diverged is shared: it tells the coordinator, and leaves."""
    if not model.finite():
        error = Diverged(
            f"the parameters of {replica.fabric.address.name} are not finite at round {rounds}"
        )
        replica.client.tell(Failed(error.cause, str(error)))
        raise error


class Momentum(Enum):
    """What becomes of the optimizer's momentum under a strategy."""

    LOCAL = "local"
    """Each learner keeps its own."""
    FOLDED = "folded"
    """Asynchrony acts as momentum: m is given up for a rate 1 / (1 - m) times as large."""


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """The settings of a strategy, and what it declares of itself.

    A strategy is a frozen, keyword-only dataclass that derives from this; its fields are its
    options (``--set strategy.OPTION=VALUE``). Registered under the entry point
    ``unisono.strategies``, it needs no change in Unisono.
    """

    name: ClassVar[str]
    """The one word that chooses it."""
    paper: ClassVar[str] = ""
    """Where it was published."""
    shares: ClassVar[str] = "parameters and floating-point buffers; optimizer state stays local"
    """What is shared: parameters, gradients, buffers, optimizer state."""
    schedule: ClassVar[ScheduleChoice] = ScheduleChoice.EXPONENTIAL
    """How its learning rate goes over a run, unless `rate.schedule` says otherwise."""

    def __post_init__(self) -> None:
        """Checks the options' types; a choice may be given by its name (call it in your own)."""
        for option in fields(self):
            value = getattr(self, option.name)
            checked = checked_option(type(self), option, value)
            if checked is not value:
                object.__setattr__(self, option.name, checked)

    @property
    @abstractmethod
    def waits(self) -> str:
        """Who waits for whom."""

    @property
    def momentum(self) -> Momentum:
        """What becomes of the optimizer's momentum."""
        return Momentum.LOCAL

    @property
    def rate_rule(self) -> str:
        """What to do with the learning rate, in words."""
        return "multiply by the number of learners"

    def rate_factor(self, learners: int) -> float:
        """The rule as a number: what a learning rate that suits one learner is multiplied by.

        By default the number of learners: a step of one of them counts for 1/learners in the mean.
        """
        return float(learners)

    @abstractmethod
    def round_plan(self, batch_size: int) -> RoundPlan:
        """How learners are fed."""

    @abstractmethod
    def participant(self, replica: Replica) -> Participant:
        """One learner's part."""

    def mixing(self, learners: int) -> Mixing | None:
        """The mixing matrix of learners that exchange in small groups; None: all agree at once."""
        return None

    def explain(self, learners: int) -> list[str]:
        """What follows from the settings for so many learners, a line each."""
        return []

    def in_chunks_of(self, frames: int) -> Strategy:
        """The same for examples of so many frames each: options in examples are divided."""
        counted = {f.name: getattr(self, f.name) for f in fields(self) if UNIT in f.metadata}
        return replace(self, **{name: divide(value, frames) for name, value in counted.items()})


def describe(strategy: Strategy, learners: int) -> list[str]:
    """The lines that are printed when a run starts."""
    options = ", ".join(f"{f.name}={_plain(getattr(strategy, f.name))}" for f in fields(strategy))
    return [
        f"strategy  {strategy.name}" + (f" ({options})" if options else ""),
        f"shares    {strategy.shares}",
        f"waits     {strategy.waits}",
        f"learners  {learners}",
        *strategy.explain(learners),
    ]


def _plain(value: Any) -> str:
    """An option's value as a configuration would have it."""
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__.lower() if is_dataclass(value) else str(value)


def examples_to_minibatches(examples: int, batch_size: int) -> int:
    """Whole minibatches, at least one."""
    return max(1, round(examples / batch_size))
