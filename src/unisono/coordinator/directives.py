"""Messages to learners that answer nothing: notices to the client, directives to the strategy."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import Cause
from unisono.fabric import Address, Member
from unisono.pool.ranges import Ranges


@dataclass(frozen=True)
class Failure:
    """Why the run is over."""

    who: Address
    cause: Cause
    text: str


@dataclass(frozen=True)
class ViewChanged:
    """Changes of the members since version ``since``.

    A learner that has another version asks for the whole view (``RequestView``).
    """

    since: int
    version: int
    joined: tuple[Member, ...] = ()
    gone: tuple[Address, ...] = ()


@dataclass(frozen=True)
class ViewPart:
    """A part of a whole view; they come in order."""

    version: int
    part: int
    parts: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Acknowledged:
    """All operations up to this number are in the journal."""

    sequence: int


@dataclass(frozen=True)
class NotMember:
    """This incarnation was declared dead: the learner rejoins as the next one."""


@dataclass(frozen=True)
class Abandon:
    """The run is over for this learner."""

    failure: Failure


@dataclass(frozen=True)
class AskedToLeave:
    """The learner is to leave after its current minibatch."""


@dataclass(frozen=True)
class CloseRound:
    """Dynamic sharding: the members are to do a sync round with what they have finished."""

    round: int
    members: tuple[Address, ...]
    checkpoint: bool
    """Whether its result is to be kept for a checkpoint."""


@dataclass(frozen=True)
class SendState:
    """A newcomer needs the state of the run."""

    to: Address


@dataclass(frozen=True)
class SendResult:
    """Members for which a sync round broke need its result."""

    round: int
    to: tuple[Address, ...]


@dataclass(frozen=True)
class TakeSnapshot:
    """The learner is to keep its model for a checkpoint."""

    checkpoint: int
    view: int
    """Of the members who are to do so."""


@dataclass(frozen=True)
class Continue:
    """All have taken their snapshots; None: the checkpoint was given up."""

    keep: int | None


Directive = CloseRound | SendState | SendResult | TakeSnapshot | Continue
Notice = ViewChanged | ViewPart | Acknowledged | NotMember | Abandon | AskedToLeave


@dataclass(frozen=True)
class CheckpointWritten:
    """To the coordinator's own process: all parts of a checkpoint are written."""

    folder: str
    keep: int
    committed: Ranges
    next_round: int
    error: str = ""
    """Why a part could not be written; empty: the checkpoint is complete."""
