"""What a run is to train."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """What is trained: all learners must mean the same."""

    total: int
    """Positions: minibatches over all epochs."""
    division: str
    """``dealt`` or ``drawn``."""
    share: int
    """Minibatches a learner between two agreements."""
    rounds: int
    """Rounds in a deal."""
    agrees: bool
    """Whether work is settled by agreements of all, or by each learner's own word."""
    fingerprint: str
    """Of strategy, data and settings."""
    checkpoint_every: int = 0
    """Positions between checkpoints; 0: none."""
    alone: int = 0
    """Drawn: positions, at the start, that one learner trains by itself."""

    def differences(self, other: Job) -> str:
        """What another learner says otherwise, in words."""
        ours, theirs = asdict(self), asdict(other)
        return ", ".join(f"{k} {ours[k]} and {theirs[k]}" for k in ours if ours[k] != theirs[k])
