"""What a learner is to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from unisono.learner.planner import Minibatch
from unisono.strategies.base import StateBundle

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """What is to be trained, how it is loaded, and where a resumed run continues."""

    total: int
    """Positions over all epochs."""
    batch_size: int
    load: Callable[[Minibatch], T]
    """Makes the data of a minibatch, or waits for it."""
    examples: Callable[[Minibatch], int]
    """How many examples a minibatch holds."""
    fingerprint: str = ""
    committed: Sequence[tuple[int, int]] = ()
    """Positions that were committed before a resumption."""
    sync_round: int = 0
    """The number of the first sync round, which is not 0 in a resumed run."""
    checkpoint_every: int = 0
    """Positions between checkpoints; 0: none."""
    on_checkpoint: Callable[[int, StateBundle], None] = lambda sync_round, strategy: None
    on_drop: Callable[[], None] = lambda: None
    """Clears gradients that no step will use."""
    prefetch: int = 0
    """Minibatches that are loaded ahead."""
    announce: Callable[[Minibatch], None] = lambda minibatch: None
    """Announces minibatches in the order in which they will be loaded."""
    window: int = 0
    """Minibatches between ``announce`` and ``load``, while the pool has any."""
    metrics: str = ""
    """A file for the run's events, if the coordinator has none."""
    single: bool = False
    """Whether this is the only learner, so that no states need be compared."""
    machine: tuple[str, str] = ("", "")
    """Host and device, for the run's events."""
