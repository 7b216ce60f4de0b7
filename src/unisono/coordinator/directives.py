"""What the coordinator wants of learners: notices for the client, directives for the strategy."""

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
    """Who takes part from now on: the members of version ``since``, with these changes.

    A learner that has another version than that asks for the whole view (``RequestView``).
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
    """This incarnation has no place in the run any more: it was declared dead."""


@dataclass(frozen=True)
class Abandon:
    """The run is over for this learner."""

    failure: Failure


@dataclass(frozen=True)
class AskedToLeave:
    """The learner is to leave after its minibatch, in good order."""


@dataclass(frozen=True)
class CloseRound:
    """Dynamic sharding: the members contribute what they have finished to a sync round."""

    round: int
    members: tuple[Address, ...]
    checkpoint: bool
    """Whether its result is to be kept."""


@dataclass(frozen=True)
class SendState:
    """A newcomer needs the state of the run."""

    to: Address


@dataclass(frozen=True)
class SendResult:
    """Members for whom a sync round broke need its result."""

    round: int
    to: tuple[Address, ...]


@dataclass(frozen=True)
class TakeSnapshot:
    """A checkpoint: the learner keeps its model as it is."""

    checkpoint: int


@dataclass(frozen=True)
class Continue:
    """All have taken their snapshot, which is to be kept; None: the checkpoint was given up."""

    keep: int | None


Directive = CloseRound | SendState | SendResult | TakeSnapshot | Continue
Notice = ViewChanged | ViewPart | Acknowledged | NotMember | Abandon | AskedToLeave


@dataclass(frozen=True)
class CheckpointWritten:
    """For the coordinator's own process: all parts of a checkpoint are there."""

    folder: str
    keep: int
    committed: Ranges
    next_round: int
    error: str = ""
    """Why it is given up, although all have tried; empty: it is whole."""
