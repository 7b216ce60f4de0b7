"""Whose models go into an average: rules that look at how well each learner did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Candidate:
    """What a learner reports with its model."""

    examples: int
    """Trained since the last sync round."""
    objective: float | None
    """How well it did on them, larger is better; None: unknown."""


class Selection(Protocol):
    """A rule. Every member applies it to the same candidates, so all get the same weights."""

    def objective(self) -> float | None:
        """How well this learner did since the last call; called on the agent."""

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        """The weight of each model, before they are divided by their sum.

        A learner that trained and gets 0 is left out: it continues from the mean of the others, and
        its minibatches count as skipped.
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
    """Kaldi's rules: at first only the best model, then those that are not far behind it.

    While a model changes fast, the mean of several is worse than each of them; and a learner that
    has diverged spoils the mean. With f_i the objective of learner i,

        sync round 0, if best_first:   the first i with f_i = max f
        later, if gap > 0:            all i with f_i >= max f - gap

    weighted by their examples. Learners that trained nothing are not considered; if no objective is
    finite, all are kept.
    """

    tell: Callable[[], float | None] = field(repr=False)
    """This learner's objective since the last call, for example its log-prob per frame."""
    gap: float = 1.0
    """How far behind the best a learner may be; 0: any distance."""
    best_first: bool = True
    """Whether the first sync round keeps only the best model."""

    def objective(self) -> float | None:
        return self.tell()

    def weights(self, candidates: Sequence[Candidate], sync_round: int) -> list[float]:
        """The examples of learners that are kept, 0 for the others."""
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
