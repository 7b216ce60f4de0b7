"""What a strategy is, and what it sees of its learner.

A strategy is two classes: a frozen, keyword-only dataclass of its settings, which a user names or
makes, and a *participant*, one learner's part in it. The participant's hooks run on the
learner's own thread; whatever runs beside computing is an activity that it spawns. It sees
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
from unisono.errors import Diverged, UserError
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
    """Minibatches per learner between two sync rounds, at first."""
    rounds: int
    """Rounds in an assignment."""
    pace: PaceSchedule = ()
    """``share`` by the number of the round, where it changes on a schedule."""
    adaptive_pace: bool = False
    """Whether ``share`` is chosen by the measured cost of rounds."""
    commits_by_round: bool = True
    """Whether work is committed by sync rounds of all; if not, by each learner's own reports."""
    lockstep: bool = False
    """Whether every learner must take part in every step, even without a minibatch of its own."""
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
        """The positions, merged, as they are reported to others."""
        return merge(self.ranges)


@dataclass
class Snapshot:
    """Parameters plus pending deltas at one instant, and the work in them since the last one."""

    vector: Vector
    work: TrainedWork


@dataclass
class StateBundle:
    """State that is sent or saved: plain values and named vectors."""

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
        """Takes a copy of parameters plus pending deltas, with the work in them; any thread."""

    def add(self, delta: Vector) -> None:
        """Adds a delta to the parameters in the learner's next update; any thread."""

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
        """A line for the learner's own log, from which coverage can be checked."""


class Participant:
    """One learner's part in a strategy. The hooks do nothing unless a strategy overrides them.

    A learner that begins a run with the same parameters as the first one is not sent its state, so
    a participant must be constructed alike on all learners.
    """

    optimizer_travels = False
    """Whether a newcomer also needs the donor's optimizer state."""
    shares_gradients = False
    """Whether others see its gradients, which must then be finite before ``before_update``."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.fabric = replica.fabric
        self.client = replica.client
        self.rounds = 0
        self.wait_s = 0.0
        """Seconds that the learner's own thread has waited for others."""
        self._kept: tuple[int, StateBundle] | None = None
        """For ``take_checkpoint``."""
        self.waiting_since: float | None = None
        """Since when it has been waiting for others; None: it is not."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures a wait of the learner's own thread for others."""
        began = self.waiting_since = self.fabric.now()
        try:
            yield
        finally:
            self.wait_s += self.fabric.now() - began
            self.waiting_since = None

    def start(self) -> None:
        """Called when the learner has joined, before its first minibatch. May spawn activities."""

    def enter(self, assignment: Assignment | None) -> bool:
        """Called at the start of each assignment; dynamic sharding: once, with None.

        Newcomers get their state here. Returns False if the run was over before that.
        """
        return True

    def before_minibatch(self) -> None:
        """Called before each minibatch."""

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        """Called when gradients are there; with static sharding they belong to ``sync_round``."""

    def before_update(self) -> bool:
        """Called before the optimizer steps; False: the strategy steps elsewhere instead."""
        return True

    def after_update(self) -> None:
        """Called when the optimizer has stepped, and pending deltas were added."""

    def end_of_round(self, sync_round: int) -> None:
        """Static sharding: called when this learner has trained its part of the round."""

    def flush(self) -> None:
        """Called when no lease is free: shares what was trained, so that it can be committed."""

    def finish(self, leader: Address | None) -> None:
        """Called before leaving, when everything is committed; ``leader`` will save the model."""

    def consensus(self) -> Vector | None:
        """The model that the run hands out; None: the learner's own parameters."""
        return None

    def state(self) -> StateBundle:
        """The state for checkpoints and for newcomers."""
        return StateBundle()

    def load_state(self, bundle: StateBundle) -> None:
        """The inverse of ``state``."""

    def restore(self, bundle: StateBundle) -> None:
        """As ``load_state``, from a checkpoint or a donor; sets the parameters too if needed."""
        self.load_state(bundle)

    def restore_parts(self, parts: Sequence[StateBundle]) -> None:
        """Goes on from a checkpoint: its own part and, if the strategy has shards, all others."""
        self.restore(parts[0])

    def take_checkpoint(self) -> tuple[int, StateBundle] | None:
        """Dynamic sharding: the number of a checkpoint and the state to write, once; else None."""
        kept, self._kept = self._kept, None
        return kept


def check_finite(replica: Replica, model: Vector, rounds: int) -> None:
    """Ends a learner that has diverged before its model is shared, and tells the coordinator."""
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
    """Asynchrony acts as momentum: momentum m is replaced by a rate 1 / (1 - m) times as large."""


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """The settings of a strategy, and its properties.

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
    has_shards: ClassVar[bool] = False
    """Whether its model lies in shards, which servers may hold."""
    schedule: ClassVar[ScheduleChoice] = ScheduleChoice.EXPONENTIAL
    """How its learning rate goes over a run, unless `rate.schedule` says otherwise."""

    def __post_init__(self) -> None:
        """Checks the types of options, and makes choices from their names; call it in yours."""
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
        """The mixing matrix of learners that exchange in small groups; None: all average."""
        return None

    def explain(self, learners: int) -> list[str]:
        """Lines for the user on what follows from the settings for so many learners."""
        return []

    def in_chunks_of(self, frames: int) -> Strategy:
        """The same strategy for examples of so many frames: divides options that count examples."""
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


def check_servers(strategy: Strategy) -> None:
    """Whether members that hold shards are of any use.

    Raises:
        UserError: they are not.
    """
    if not strategy.has_shards:
        raise UserError(
            f"{strategy.name} has no shards that servers could hold: leave --servers out, or "
            "choose server, averaged-server or elastic"
        )


def _plain(value: Any) -> str:
    """An option's value as a configuration would have it."""
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__.lower() if is_dataclass(value) else str(value)


def examples_to_minibatches(examples: int, batch_size: int) -> int:
    """Whole minibatches, at least one."""
    return max(1, round(examples / batch_size))
