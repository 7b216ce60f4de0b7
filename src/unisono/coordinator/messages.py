"""The coordinator's protocol: operations of learners, and the coordinator's answers.

Learners send ``Numbered`` operations, which go into the journal as ``Command``, and ``Heartbeat``,
``RequestView`` and ``Event``, which do not. A ``Request`` is an operation that is answered with one
of the types that it names. Messages that answer nothing are in ``unisono.coordinator.directives``.
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
    """The learner's job is that of the others."""

    new: bool
    """Whether it is the first to open the job."""


@dataclass(frozen=True)
class Mismatch:
    """The learner's job differs from that of the others."""

    reason: str


@dataclass(frozen=True)
class Left:
    """The learner is no member any more."""

    leads: bool = False
    """Whether it is the leader, or the last to leave where none was chosen."""


@dataclass(frozen=True)
class Synced:
    """All earlier operations of the learner are in the journal."""


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
    """There is nothing to lease or assign at the moment."""


@dataclass(frozen=True)
class Complete:
    """Every position is committed or skipped."""

    leader: Address | None = None
    """The learner that sees to the final model."""
    stopped: bool = False
    """Whether the run was stopped before all positions were handed out."""


@dataclass(frozen=True)
class EntryGranted:
    """The donor of the newcomer's state; None: it has the run's state already."""

    donor: Address | None


@dataclass(frozen=True)
class Entered:
    """The newcomer takes part."""


@dataclass(frozen=True)
class Outdated:
    """A round was completed since the donor sent its state: the newcomer must enter again."""


@dataclass(frozen=True)
class Retry:
    """The living members do the sync round again."""

    round: int
    attempt: int
    excluded: tuple[Address, ...]


@dataclass(frozen=True)
class Fetch:
    """A member has the result of the sync round, and sends it."""

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
    """Sends the job, and what was committed before a resumption."""

    job: Job
    committed: Ranges
    round: int
    digest: str = ""
    """Of the state that it comes with; a learner with the same one needs no donor."""


@dataclass(frozen=True)
class Retire(Request[Left]):
    """The learner did not get its state; it comes back as a newcomer."""


@dataclass(frozen=True)
class Leave(Request[Left]):
    """Leaves, once all its work is committed."""


@dataclass(frozen=True)
class Sync(Request[Synced]):
    """Waits until all earlier operations are in the journal."""


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
    """A sync round broke for this learner, which has the results of all before."""

    round: int


@dataclass(frozen=True)
class RoundCompleted:
    """This learner has the results of all rounds up to this one, and what went into them."""

    round: int
    notes: Notes
    timing: RoundTiming | None = None


@dataclass(frozen=True)
class Commit:
    """Work, by owner, whose effect is in state that survives the owners."""

    notes: Notes


@dataclass(frozen=True)
class Skip:
    """Positions that were computed without a step being taken."""

    ranges: Ranges


@dataclass(frozen=True)
class Stop:
    """Nothing more is to be handed out; the run ends when all that was is committed."""


@dataclass(frozen=True)
class Return:
    """Positions whose results came too late to be used."""

    ranges: Ranges


@dataclass(frozen=True)
class Idle:
    """The learner has shared all that it has trained."""


@dataclass(frozen=True)
class Closed:
    """The learner has reported all work that it has of one that is gone."""

    gone: Address


@dataclass(frozen=True)
class SnapshotTaken:
    """The learner keeps its model for a checkpoint, with this uncommitted work in it."""

    checkpoint: int
    ranges: Ranges


@dataclass(frozen=True)
class PartWritten:
    """The learner has written its part of a checkpoint, or could not."""

    checkpoint: int
    folder: str
    keep: int
    error: str = ""
    """Why it could not be written; empty: it was."""


@dataclass(frozen=True)
class Failed:
    """An error that ends the run, or this learner alone; a traceback, or one line."""

    cause: Cause
    text: str


@dataclass(frozen=True)
class ReportMalformed:
    """Another member has sent this learner a malformed message."""

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
    """The run begins without those expected learners that have not joined."""


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
    """A learner's operation with its number, and the port for the answer."""

    sequence: int
    operation: OfLearner
    reply: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """The learner is alive."""

    endpoint: str
    phase: Phase | None = None
    """What it is doing; None: unknown."""


@dataclass(frozen=True)
class RequestView:
    """The learner has missed a change of the view, and needs all of it."""


@dataclass(frozen=True)
class Event:
    """A line for the metrics; it may be lost."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """An operation as it is applied and journaled: of a member, or of the coordinator about one."""

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


@dataclass(frozen=True)
class SnapshotKept:
    """For a server's own thread: there is a part of a checkpoint to write."""


PLAN: TypedPort[Reply | SnapshotKept] = TypedPort("plan", Reply)
"""Where answers to requests for work come."""


def reply_port(name: str) -> TypedPort[Reply]:
    """A port on which a learner waits for answers."""
    return TypedPort(name, Reply)
