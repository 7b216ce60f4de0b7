"""The coordinator's protocol: what learners tell and ask it, and what it answers.

Learners send ``Numbered`` operations, which go into the journal as ``Command``, and ``Heartbeat``,
``RequestView`` and ``Event``, which do not. A ``Request`` is an operation that is answered, with
one of the types that it names. What the coordinator wants of learners is in
``unisono.coordinator.directives``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, get_args

from typing_extensions import get_original_bases

from unisono.coordinator.directives import CheckpointWritten, Directive, Notice
from unisono.coordinator.job import Job
from unisono.coordinator.pace import RoundTiming
from unisono.coordinator.requests import Requested
from unisono.coordinator.status import Phase
from unisono.errors import Cause
from unisono.fabric import Address, ConnectionLost, CoordinatorFound, MembersChanged, Rejected
from unisono.fabric.codec import Codec, TypedPort
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Notes, Ranges

A = TypeVar("A")


class Request(Generic[A]):
    """An operation that is answered with an ``A``."""

    @classmethod
    def answers(cls) -> Any:
        """The type, or the union of types, of its answers."""
        return get_args(get_original_bases(cls)[0])[0]


# Answers.


@dataclass(frozen=True)
class Admitted:
    """The learner is a member."""


@dataclass(frozen=True)
class Opened:
    """The learner wants to train what the others do."""

    new: bool
    """Whether it is the first to say what that is."""


@dataclass(frozen=True)
class Mismatch:
    """The learner wants to train something else than the others."""

    reason: str


@dataclass(frozen=True)
class Left:
    """The learner is no member any more."""

    leads: bool = False
    """Whether it sees to the model: it has been told to (and may not have heard of it), or no other
    is left and none has been told."""


@dataclass(frozen=True)
class Synced:
    """Everything that the learner has told is in the journal."""


@dataclass(frozen=True)
class Assigned:
    """Static sharding: rounds to train."""

    assignment: Assignment


@dataclass(frozen=True)
class Leased:
    """Dynamic sharding: positions to train."""

    ranges: Ranges


@dataclass(frozen=True)
class Wait:
    """There is nothing to train at the moment."""


@dataclass(frozen=True)
class Complete:
    """Every position is committed or skipped."""

    leader: Address | None = None
    """The learner that sees to the final model."""
    stopped: bool = False
    """Whether a learner has stopped the run, and some positions were never handed out."""


@dataclass(frozen=True)
class EntryGranted:
    """Who sends the newcomer its state; None: it has the run's state already."""

    donor: Address | None


@dataclass(frozen=True)
class Entered:
    """The newcomer takes part."""


@dataclass(frozen=True)
class Outdated:
    """The state that the newcomer received is out of date: it must enter once more."""


@dataclass(frozen=True)
class Retry:
    """The living do the sync round again."""

    round: int
    attempt: int
    excluded: tuple[Address, ...]


@dataclass(frozen=True)
class Fetch:
    """The result of the sync round comes from a member that has it."""

    round: int
    source: Address


Answer = (
    Admitted
    | Opened
    | Mismatch
    | Left
    | Synced
    | Assigned
    | Leased
    | Wait
    | Complete
    | EntryGranted
    | Entered
    | Outdated
    | Retry
    | Fetch
)


@dataclass(frozen=True)
class Reply:
    """The answer to the operation of that number."""

    sequence: int
    answer: Answer


# Operations of learners.


@dataclass(frozen=True)
class Join(Request[Admitted]):
    """Becomes a member."""

    endpoint: str
    metrics: str = ""
    """A file for the run's events, if the coordinator was told none."""
    host: str = ""
    device: str = ""


@dataclass(frozen=True)
class Open(Request[Opened | Mismatch]):
    """Says what is to be trained, and from where it goes on."""

    job: Job
    committed: Ranges
    round: int
    digest: str = ""
    """Of the state that it comes with: who begins with the same needs no donor."""


@dataclass(frozen=True)
class Retire(Request[Left]):
    """The learner did not get its state, and has trained nothing; it comes back as a newcomer."""


@dataclass(frozen=True)
class Leave(Request[Left]):
    """Leaves, once nothing of it is uncommitted."""


@dataclass(frozen=True)
class Sync(Request[Synced]):
    """Waits until everything that was told before is in the journal."""


@dataclass(frozen=True)
class RequestAssignment(Request[Assigned | Wait | Complete]):
    """Static sharding: asks for the rounds of that number; None: for those to begin with."""

    number: int | None
    patient: bool
    """Whether to wait until there are some."""


@dataclass(frozen=True)
class RequestLease(Request[Leased | Wait | Complete]):
    """Dynamic sharding: asks for some positions."""

    want: int
    patient: bool
    """Whether to wait until there are some."""


@dataclass(frozen=True)
class Enter(Request[EntryGranted | Complete]):
    """Dynamic sharding: asks for the state of the run."""


@dataclass(frozen=True)
class StateReceived(Request[Entered | Outdated]):
    """The donor's state is here, as it was after so many rounds."""

    rounds: int


@dataclass(frozen=True)
class RoundBroken(Request[Retry | Fetch]):
    """A sync round broke for this learner; it has the results of all before."""

    round: int


@dataclass(frozen=True)
class RoundCompleted:
    """This learner has the results of all rounds up to this one; what went into them."""

    round: int
    notes: Notes
    timing: RoundTiming | None = None


@dataclass(frozen=True)
class Commit:
    """Work, by its owners, whose effect is in state that survives them."""

    notes: Notes


@dataclass(frozen=True)
class Skip:
    """Positions that were computed, and no step was taken."""

    ranges: Ranges


@dataclass(frozen=True)
class Stop:
    """Nothing more is to be handed out: the run ends when what was is committed."""


@dataclass(frozen=True)
class Return:
    """Positions whose results came too late to be used."""

    ranges: Ranges


@dataclass(frozen=True)
class Idle:
    """The learner has shared all that it has trained."""


@dataclass(frozen=True)
class Closed:
    """The learner has told all that it has of one that is gone."""

    gone: Address


@dataclass(frozen=True)
class SnapshotTaken:
    """The learner keeps its model for a checkpoint; it contains this, too, uncommitted."""

    checkpoint: int
    ranges: Ranges


@dataclass(frozen=True)
class PartWritten:
    """The learner has written its part of a checkpoint, or could not."""

    checkpoint: int
    folder: str
    keep: int
    error: str = ""
    """Why it could not be written; empty: it is."""


@dataclass(frozen=True)
class Failed:
    """Something went wrong that ends the run, or this learner alone; a traceback, or one line."""

    cause: Cause
    text: str


@dataclass(frozen=True)
class ReportMalformed:
    """Another member has sent this one something malformed."""

    who: Address
    why: str


# Operations of the coordinator itself.


class LossReason(Enum):
    """Why a learner was declared dead."""

    PROCESS_ENDED = "process-ended"
    SILENT = "silent"
    MALFORMED = "malformed"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class Lost:
    """The learner is declared dead."""

    reason: LossReason
    silent_s: float = 0.0

    def __str__(self) -> str:
        if self.reason is LossReason.SILENT:
            return f"silent for {self.silent_s:g} s"
        if self.reason is LossReason.MALFORMED:
            return "it sent a malformed message"
        if self.reason is LossReason.DIVERGED:
            return "it diverged"
        return "its process ended"


@dataclass(frozen=True)
class StartWithoutMissing:
    """Not all who were expected have come; the run begins without them."""


Asked = (
    Join
    | Open
    | Retire
    | Leave
    | Sync
    | RequestAssignment
    | RequestLease
    | Enter
    | StateReceived
    | RoundBroken
)
Told = (
    RoundCompleted
    | Commit
    | Skip
    | Stop
    | Return
    | Idle
    | Closed
    | SnapshotTaken
    | PartWritten
    | Failed
    | ReportMalformed
)
OfLearner = Asked | Told
Operation = OfLearner | Lost | StartWithoutMissing | Requested


@dataclass(frozen=True)
class Numbered:
    """An operation of a learner: the next of its numbers, and where it wants the answer."""

    sequence: int
    operation: OfLearner
    reply: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """The learner lives."""

    endpoint: str
    phase: Phase | None = None
    """What it is doing; None: it does not say."""


@dataclass(frozen=True)
class RequestView:
    """The learner has missed a change of the members: it needs the whole view."""


@dataclass(frozen=True)
class Event:
    """A line for the metrics; it may be lost."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """An operation as it is applied and kept: of a member, or of the coordinator about one."""

    who: Address
    operation: Operation
    sequence: int | None = None
    """None: the coordinator's own."""
    reply: str = ""


COMMANDS: Codec[Command] = Codec(Command)

Body = Reply | Notice | Directive | CheckpointWritten

PORT: TypedPort[Numbered | Heartbeat | RequestView | Event | ConnectionLost | Rejected] = TypedPort(
    "coordinator", Numbered | Heartbeat | RequestView | Event
)
CONTROL: TypedPort[Notice | MembersChanged | CoordinatorFound | Rejected] = TypedPort(
    "control", Notice
)


def reply_port(name: str) -> TypedPort[Reply]:
    """A port on which a learner waits for answers."""
    return TypedPort(name, Reply)
