"""Whose models go into an average: a seam for rules that look at how well each learner did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Candidate:
    """What a learner says of the model that it brings."""

    examples: int
    """Trained since the last sync round."""
    objective: float | None
    """How well it did on them, larger is better; None: it does not say."""


class Selection(Protocol):
    """A rule. Every member applies it to the same bids, so all come to the same weights."""

    def objective(self) -> float | None:
        """How well this learner did since it was last asked; on the agent's activity."""

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        """The weight of each model; those of all are divided by their sum.

        A learner that trained and gets 0 is left out: it goes on from what the others agreed on,
        and its minibatches count as skipped, since nothing of them is in any model.
        """


@dataclass(frozen=True)
class AllModels:
    """All models, weighted by the examples trained."""

    def objective(self) -> float | None:
        return None

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        return [float(candidate.examples) for candidate in candidates]


@dataclass(frozen=True, kw_only=True)
class KeepGood:
    """Kaldi's rules: the best model alone at first, then those that are not far behind it.

    While a model changes fast, the mean of several is worse than each of them; and one learner that
    has diverged spoils the mean of all. With f_i the objective of learner i,

        sync round 0, if best_first:   the first i with f_i = max f
        later, if gap > 0:            all i with f_i >= max f - gap

    weighted by their examples. A learner that trained nothing has no say; if nobody says anything
    finite, all are kept.
    """

    tell: Callable[[], float | None] = field(repr=False)
    """This learner's own objective, log-prob a frame say, since it was last asked."""
    gap: float = 1.0
    """How far behind the best a learner may be; 0: any distance."""
    best_first: bool = True
    """Whether the first sync round keeps the best model alone."""

    def objective(self) -> float | None:
        return self.tell()

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        """Examples of those who are kept, and 0 for the others."""
        said = [
            candidate.objective
            if candidate.examples > 0
            and candidate.objective is not None
            and math.isfinite(candidate.objective)
            else -math.inf
            for candidate in candidates
        ]
        best = max(said)
        if best == -math.inf:
            return [float(candidate.examples) for candidate in candidates]
        if sync_round == 0 and self.best_first:
            return [float(place == said.index(best)) for place in range(len(candidates))]
        least = best - self.gap if self.gap > 0 else -math.inf
        return [
            float(b.examples) if f >= least else 0.0 for b, f in zip(candidates, said, strict=True)
        ]
