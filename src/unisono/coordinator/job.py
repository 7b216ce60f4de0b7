"""What a run is to train."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """What is trained: all learners must mean the same."""

    total: int
    """Positions: minibatches over all epochs."""
    sharding: str
    """``static`` or ``dynamic``."""
    share: int
    """Minibatches a learner between two sync rounds."""
    rounds: int
    """Rounds in an assignment."""
    commits_by_round: bool
    """Whether work is committed by sync rounds of all, or by each learner's own word."""
    fingerprint: str
    """Of strategy, data and settings."""
    checkpoint_every: int = 0
    """Positions between checkpoints; 0: none."""
    alone: int = 0
    """Dynamic sharding: positions, at the start, that one learner trains by itself."""

    def differences(self, other: Job) -> str:
        """What another learner says otherwise, in words."""
        ours, theirs = asdict(self), asdict(other)
        return ", ".join(f"{k} {ours[k]} and {theirs[k]}" for k in ours if ours[k] != theirs[k])
