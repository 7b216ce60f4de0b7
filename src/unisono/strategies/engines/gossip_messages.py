"""The messages of learners that exchange models in pairs or with neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.coordinator.directives import Directive
from unisono.coordinator.output import STRATEGY
from unisono.fabric import MembersChanged, Rejected, TypedPort
from unisono.pool.ranges import Notes
from unisono.strategies.engines.gather import ShowModel

# Exchanges of two.


@dataclass(frozen=True)
class Ask:
    """Begins an exchange, with the sender's model, and notes of uncommitted work in it."""

    notes: Notes


@dataclass(frozen=True)
class ModelAnswer:
    """The other model of an exchange."""

    notes: Notes


# Exchanges with both neighbours.


@dataclass(frozen=True)
class NeighbourModel:
    """A model, notes of uncommitted work in it, and the weight that its sender would give to it."""

    notes: Notes
    weight: float


# Both.


@dataclass(frozen=True)
class Busy:
    """There will be no answer: the receiver is in an exchange, or has not entered yet."""


@dataclass(frozen=True)
class Free:
    """A learner that was told ``Busy`` may ask again."""


@dataclass(frozen=True)
class ExchangeState:
    """Of a checkpoint, beside the model."""

    rounds: int


@dataclass(frozen=True)
class NewcomerNotes:
    """What a newcomer gets with a model."""

    notes: Notes


# From the learner's thread to its agent.


@dataclass(frozen=True)
class Tick:
    """It is time for an exchange."""


@dataclass(frozen=True)
class Drain:
    """Exchange until all own work is in others' models, too."""


@dataclass(frozen=True)
class TookOver:
    """The learner has a donor's model."""

    notes: Notes


@dataclass(frozen=True)
class HasEntered:
    """The learner takes part."""


@dataclass(frozen=True)
class End:
    """No more exchanges."""


@dataclass(frozen=True)
class Ended:
    """The answer to that."""


PeerMessage = Ask | ModelAnswer | NeighbourModel | Busy | Free | ShowModel
OwnMessage = Tick | Drain | TookOver | HasEntered | End
PORT: TypedPort[PeerMessage | Directive | OwnMessage | MembersChanged | Rejected] = TypedPort(
    STRATEGY, PeerMessage | Directive
)
ENDED: TypedPort[Ended] = TypedPort("ended")
