"""What a run is to train."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from unisono.coordinator.pace import PaceSchedule
from unisono.fabric.codec import to_plain

WORDS = {
    "total": "the number of minibatches",
    "pace": "minibatches per round",
    "checkpoint_every": "minibatches between checkpoints",
}


class Sharding(Enum):
    """Who trains what."""

    STATIC = "static"
    """A function of seed, position and members; a slow learner is waited for."""
    DYNAMIC = "dynamic"
    """First come, first served; a slow learner trains fewer minibatches."""


@dataclass(frozen=True)
class Job:
    """What is trained; it must be the same for all learners."""

    total: int
    """Positions: minibatches over all epochs."""
    sharding: Sharding
    pace: PaceSchedule
    """Minibatches per learner between two sync rounds, by the number of the round."""
    rounds: int
    """Rounds in an assignment."""
    commits_by_round: bool
    """Whether work is committed by sync rounds of all, or by each learner's own word."""
    fingerprint: str
    """Of strategy, data and settings."""
    checkpoint_every: int = 0
    """Positions between checkpoints; 0: none."""
    adaptive_pace: bool = False
    """Whether the coordinator chooses the pace by measurement, beginning with ``pace``."""
    alone: int = 0
    """Dynamic sharding: positions, at the start, that one learner trains by itself."""

    def differences(self, other: Job) -> str:
        """How another learner's job differs, in words."""
        if self.fingerprint != other.fingerprint:
            return "strategy, model or data: give all the same"
        ours, theirs = to_plain(self), to_plain(other)
        both = [(f.name, ours.get(f.name, 0), theirs.get(f.name, 0)) for f in fields(self)]
        found = [(WORDS.get(name, name), one, two) for name, one, two in both if one != two]
        return ", ".join(f"{words}: {one} and {two}" for words, one, two in found)
