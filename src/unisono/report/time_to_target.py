"""Time to target: how long until the consensus is as good as the best solo run, less a margin.

The clock starts when the last of the first learners has joined; start-up is told apart. The target
is the mean, over seeds, of the final held-out log-prob of the best solo run (best over optimizers
and rates), less a margin. A run's time to it is where its curve first crosses it, on the line
between two validations; a run that is there at its first validation has that one's time. The
speed-up is the ratio of solo's time to a strategy's, seed by seed; its mean is the geometric one,
and its interval Student's t of the logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.report.history import History, Point, by_time
from unisono.report.statistics import Estimate, estimate

MARGINS = (0.02, 0.1)
"""Nats a frame below the best solo run's final log-prob; the first is the headline's."""


@dataclass(frozen=True)
class Curve:
    """Held-out log-prob of one run against seconds of training.

    Attributes:
        seed: of the run.
        start_up_s: seconds before the training began.
        points: (seconds, log-prob) of each validation that was finite, in order.
        stalled_s: seconds that learners stood still for validation, summed over learners.
    """

    seed: int
    start_up_s: float
    points: Sequence[Point]
    stalled_s: float = 0.0

    @property
    def final(self) -> float:
        """Log-prob of the last validation, that of the final model."""
        return self.points[-1][1] if self.points else -math.inf

    @property
    def best(self) -> float:
        return max((height for _, height in self.points), default=-math.inf)

    def reaches(self, target: float) -> float | None:
        """Seconds of training until the log-prob is first at the target; None: never."""
        before: Point | None = None
        for time, height in self.points:
            if height >= target:
                if before is None:
                    return time
                share = (target - before[1]) / (height - before[1])
                return before[0] + share * (time - before[0])
            before = (time, height)
        return None


def read_curve(run: Path, seed: int, key: str) -> Curve:
    """The curve of a finished run, from its directory; ``key`` of its validations."""
    history = History.read(run, "")
    pieces = history.without_start_up().checks(key, by_time)
    stalled = sum(event.get("stalled_s", 0.0) for event in history.named("validation"))
    points = [point for piece in pieces for point in piece]
    return Curve(seed, history.start_up_s, points, stalled)


@dataclass(frozen=True)
class TimeToTarget:
    """How long a strategy takes to one target.

    Attributes:
        margin: below the best solo run's final log-prob.
        target: the log-prob itself.
        seconds: of training, of each seed; None: it never got there.
        time: mean seconds over the seeds that got there; None: no seed did.
        speed_up: over the best solo run, of the seeds where both got there.
        best: the highest log-prob of all seeds' runs: how far it got.
    """

    margin: float
    target: float
    seconds: Sequence[float | None]
    time: Estimate | None
    speed_up: Estimate | None
    best: float

    @property
    def reached(self) -> int:
        return sum(seconds is not None for seconds in self.seconds)


def time_to_target(curves: Sequence[Curve], solo: Sequence[Curve], margin: float) -> TimeToTarget:
    """Times of a strategy's runs, a seed each, beside those of the best solo run."""
    target = statistics.fmean(curve.final for curve in solo) - margin
    alone = {curve.seed: curve.reaches(target) for curve in solo}
    seconds = [curve.reaches(target) for curve in curves]
    there = [time for time in seconds if time is not None]
    ratios = [
        theirs / max(mine, 1e-9)
        for curve, mine in zip(curves, seconds, strict=True)
        if mine is not None and (theirs := alone.get(curve.seed)) is not None
    ]
    return TimeToTarget(
        margin,
        target,
        seconds,
        estimate(there) if there else None,
        ratio_estimate(ratios) if ratios else None,
        max((curve.best for curve in curves), default=-math.inf),
    )


def ratio_estimate(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of ratios, with Student's interval of their logarithms."""
    found = estimate([math.log(ratio) for ratio in ratios])
    if found.low is None or found.high is None:
        return Estimate(math.exp(found.mean), None, None)
    return Estimate(math.exp(found.mean), math.exp(found.low), math.exp(found.high))


@dataclass(frozen=True)
class Ceiling:
    """What independent processes do together, in minibatches a second, over one alone.

    Attributes:
        learners: how many processes.
        ratio: median over turns.
        low, high: the middle 90% of the turns.
        alone_per_s: minibatches a second of one.
        together_per_s: of all.
    """

    learners: int
    ratio: float
    low: float
    high: float
    alone_per_s: float
    together_per_s: float

    def line(self) -> str:
        return (
            f"Ceiling: {self.learners} independent processes make {self.together_per_s:,.1f} "
            f"minibatches a second, one {self.alone_per_s:,.1f}: {self.ratio:.2f} times as many "
            f"({self.low:.2f}..{self.high:.2f})."
        )
