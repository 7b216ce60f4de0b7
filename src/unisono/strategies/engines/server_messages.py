"""What the members of a parameter server send each other."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.coordinator.directives import Directive
from unisono.coordinator.output import STRATEGY
from unisono.fabric import Address, MembersChanged, Rejected, TypedPort
from unisono.pool.ranges import Ranges
from unisono.strategies.engines.shards import Age, Copy, Run


@dataclass(frozen=True)
class PushPiece:
    """A piece of a push, for the holder of a run of shards; without a vector, only a pull."""

    run: Run
    view: int
    number: int
    version: int
    """Of shard 0, at which the first of its minibatches was computed."""
    rates: tuple[float, ...]
    progress: float
    note: Ranges
    """The learner's work that the coordinator may not know to be committed."""
    bound: int
    """Staleness beyond which it is dropped; 0: it is not."""
    passed: int
    """The last checkpoint that its learner has passed."""
    base: int
    """The answer that its learner's copy of the run comes from; see ``server_codec``."""
    initial: bool
    """Whether that copy is the model with which the run began."""


@dataclass(frozen=True)
class Show:
    """A wish to see a run of shards as they are handed out."""

    run: Run
    view: int


@dataclass(frozen=True)
class Pulled:
    """A run of shards; the push was applied. Without the vector: the learner's copy is the same."""

    run: Run
    number: int
    stale: int
    copies: tuple[Copy, ...]
    answer: int
    """Its number; see ``server_codec``."""
    difference: bool
    """Whether the vector is what has changed since the answer that the push named."""


@dataclass(frozen=True)
class Dropped:
    """The push was too stale."""

    run: Run
    number: int
    stale: int


@dataclass(frozen=True)
class Moved:
    """The run of shards is held by somebody else."""

    run: Run
    number: int


@dataclass(frozen=True)
class Shown:
    """A run of shards as they are handed out, with the vector; without one: they have moved."""


@dataclass(frozen=True)
class CopiesWanted:
    """The sender is to hold a run of shards, and asks for what there is of them."""

    run: Run
    view: int
    ages: tuple[Age, ...]
    """Of the copies that it has: only later ones need to be sent."""


@dataclass(frozen=True)
class Copies:
    """What the sender has of a run of shards; with the vector if any of it is later."""

    run: Run
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Backup:
    """What would be lost with the sender."""

    run: Run
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Final:
    """The sender is done; from the leader, with the vector: the final model."""


@dataclass(frozen=True)
class NewcomerState:
    """What a newcomer gets beside its donor's vectors."""

    copies: tuple[Copy, ...]
    initial: bool
    """Whether what it gets of shards of version 0 is the model with which the run began."""
    gone: tuple[Address, ...]


@dataclass(frozen=True)
class ShardState:
    """One shard of a checkpoint, beside its vectors."""

    copy: Copy
    averaged: int = 0


@dataclass(frozen=True)
class ServerState:
    """A member's part of a checkpoint, beside its vectors."""

    held: dict[int, ShardState]
    rounds: int
    copies: tuple[Copy, ...] = ()
    number: int = 0
    """These two are in older checkpoints, and not used."""


# Between the learner's thread and its agent.


@dataclass(frozen=True)
class PushReady:
    """There is something to push, or to pull."""


@dataclass(frozen=True)
class PullDone:
    """The push was applied, and the model pulled."""


@dataclass(frozen=True)
class Drain:
    """Nothing more comes for the moment: see that all is committed."""


@dataclass(frozen=True)
class HasEntered:
    """The learner takes part."""


@dataclass(frozen=True)
class End:
    """The learner is about to leave."""


@dataclass(frozen=True)
class Ended:
    """The answer to that."""


PeerMessage = PushPiece | Show | Pulled | Dropped | Moved | CopiesWanted | Copies | Backup
OwnMessage = PushReady | Drain | HasEntered | End
PORT: TypedPort[PeerMessage | Directive | OwnMessage | MembersChanged | Rejected] = TypedPort(
    STRATEGY, PeerMessage | Directive
)
PULLED: TypedPort[PullDone] = TypedPort("pulled")
SHOWN: TypedPort[Shown] = TypedPort("shown", Shown)
FINAL: TypedPort[Final] = TypedPort("final", Final)
ENDED: TypedPort[Ended] = TypedPort("ended")
