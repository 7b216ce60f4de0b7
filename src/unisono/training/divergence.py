"""What ``unisono train`` does about a run that diverges: back to a checkpoint, at half the rate.

A run diverges when the steps of its learners are not finite ten times in a row, when parameters are
not finite, or when the consensus becomes clearly worse than it was. It then goes on from its last
good checkpoint, or from the start, with the learning rate halved. That is in ``config.toml``
(``rate.factor``), so a later ``--resume`` goes on with it. After ``rate.retries`` times without
progress, that is without a new checkpoint, the run ends.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.config import Config, dump
from unisono.errors import Cause, Diverged
from unisono.launch.coordinator_main import Events
from unisono.learner.checkpoint_files import (
    DamagedError,
    check,
    checkpoints,
    read_pool,
    remove,
)
from unisono.pool.ranges import Range, count, merge, subtract
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.runs.metrics import cut_torn_line
from unisono.training.builders import open_data, positions_of, shape_of

MARGIN = 0.5
"""Nats a frame by which a clearly worse model is below the best log-prob so far."""
IN_A_ROW = 2
"""Validations one after the other that must say so."""
BACK_OFF = 0.5
"""What the learning rate is multiplied by each time."""


class DivergenceWatch:
    """Finds a consensus that is clearly worse than it was, in the events of a run.

    That is one whose held-out log-prob is not finite, or in two validations in a row (or the last)
    more than ``MARGIN`` below the best one so far, while the training loss is as bad. A model that
    overfits loses on held-out frames alone. Before the first validation the best one is that of the
    uniform distribution, log(1 / outputs), which an untrained model has.
    """

    def __init__(self, outputs: int) -> None:
        self.progress = 0.0
        """How far the run is, 0 to 1."""
        self.is_confirmed = False
        """Whether a validation was good since the run last went back."""
        self._uniform = -math.log(outputs)
        self._good: list[tuple[float, float]] = []
        self._bad: list[float] = []
        self._losses: dict[int, float] = {}

    @property
    def first_bad(self) -> float | None:
        """Where the validations began to be bad that have been so until now."""
        return min(self._bad, default=None)

    def rewind(self, progress: float) -> None:
        """The run goes on from here: what came after it does not count."""
        self._good = [(place, logprob) for place, logprob in self._good if place <= progress]
        self._bad.clear()
        self._losses.clear()
        self.progress, self.is_confirmed = progress, False

    def __call__(self, event: Mapping[str, Any]) -> None:
        """One event of the run.

        Raises:
            Diverged: the consensus is clearly worse.
        """
        if event["event"] == "train":
            self.progress = max(self.progress, event["progress"])
            self._losses[event["learner"]] = _number(event["loss"], math.inf)
        elif event["event"] == "validation":
            self.progress = max(self.progress, event["progress"])
            self._judge(event["progress"], _number(event["logprob"], -math.inf))

    def _judge(self, progress: float, logprob: float) -> None:
        best = max([self._uniform, *(logprob for _, logprob in self._good)])
        loss = sum(self._losses.values()) / len(self._losses) if self._losses else None
        fits = loss is not None and -loss >= best - MARGIN
        if logprob >= best - MARGIN or (fits and math.isfinite(logprob)):
            self._good.append((progress, logprob))
            self._bad.clear()
            self._losses.clear()
            self.is_confirmed = True
            return
        self._bad.append(progress)
        if not math.isfinite(logprob):
            raise Diverged("the held-out log-prob is not finite")
        if loss is not None and (len(self._bad) >= IN_A_ROW or progress >= 1):
            raise Diverged(f"the held-out log-prob fell from {best:.2f} to {logprob:.2f}")


@dataclass(frozen=True)
class _Point:
    """A checkpoint that a run can go back to; without a folder: the start."""

    progress: float = 0.0
    committed: tuple[Range, ...] = ()
    folder: Path | None = None

    def __str__(self) -> str:
        if self.folder is None:
            return "the start"
        return f"the checkpoint at {100 * self.progress:.1f}%"


class Recovery:
    """Takes a run that has diverged back to where it was good.

    Args:
        run: its directory.
        config: what it is trained with.
        resume: whether it begins with a checkpoint that is there.
        say: prints a line for the user.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        *,
        resume: bool,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        prep = open_data(config)
        self.watch = DivergenceWatch(shape_of(config, prep)["outputs"])
        self._total = positions_of(config, prep).total
        self._run = run
        self._config = config
        self._say = say
        self._from = self._points()[-1] if resume else _Point()
        self._begun = self._from.committed
        self._reached = self._from.progress
        self._without_progress = 0

    def go_back(self, error: Diverged) -> Config:
        """Puts the run where it can go on; returns what to go on with.

        Checkpoints that are no good are removed: those made since validations are bad, and the one
        from which the run has diverged twice with no good validation between.

        Raises:
            Diverged: it has done so too often.
        """
        points = self._points()
        first_bad = self.watch.first_bad
        good = [p for p in points if first_bad is None or p.progress < first_bad or not p.folder]
        if good[-1] == self._from and self._without_progress and not self.watch.is_confirmed:
            good = good[:-1] or good
        point = good[-1]
        if point.progress > self._reached:
            self._reached, self._without_progress = point.progress, 0
        self._without_progress += 1
        factor = self._config.rate.factor
        if self._without_progress > self._config.rate.retries:
            raise self._give_up(error, factor)
        for bad in points[len(good) :]:
            assert bad.folder is not None
            remove(bad.folder)
        factor *= BACK_OFF
        rate = self._config.rate.model_copy(update={"factor": factor})
        self._config = self._config.model_copy(update={"rate": rate})
        write_atomically(self._run.config, dump(self._config).encode())
        reached = self.watch.progress
        self._note("diverged", error.what, progress=reached, to=point.progress, rate_factor=factor)
        self._say(
            f"diverged at {100 * reached:.1f}% ({error.what}): back to {point}, learning rate x "
            f"{factor:g}"
        )
        self._from = point
        self.watch.rewind(point.progress)
        return self._config

    def whole(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """The last outcome, with what was committed before the run went back and has stayed."""
        kept = subtract(self._from.committed, self._begun)
        newly = merge(kept, ((start, stop) for start, stop in outcome["newly_committed"]))
        minibatches = dict(outcome["minibatches"])
        for key in ("leased", "committed"):
            minibatches[key] += count(kept)
        return {**outcome, "newly_committed": newly, "minibatches": minibatches}

    def _give_up(self, error: Diverged, factor: float) -> Diverged:
        self._note("failed", error.what, cause=Cause.DIVERGED.value)
        if self._config.rate.retries == 0:
            return error
        return Diverged(
            f"diverged {self._without_progress} times without progress, at last at "
            f"{100 * self.watch.progress:.1f}% with the learning rate x {factor:g} ({error.what})"
        )

    def _note(self, name: str, reason: str, **fields: object) -> None:
        cut_torn_line(self._run.metrics)
        time = self._run.read_metrics()[-1]["time"]
        with contextlib.closing(Events(self._run.metrics)) as events:
            events({"event": name, "time": time, "learner": None, "reason": reason, **fields})

    def _points(self) -> list[_Point]:
        """The start, and the whole checkpoints, oldest first."""
        points = [_Point()]
        for folder in checkpoints(self._run.checkpoints):
            try:
                check(folder)
                pool = read_pool(folder)
            except DamagedError:
                continue
            committed = merge((start, stop) for start, stop in pool["committed"])
            points.append(_Point(count(committed) / self._total, committed, folder))
        return points


def _number(value: float | None, otherwise: float) -> float:
    """A number of an event; one that is not finite is null in a file."""
    return otherwise if value is None or not math.isfinite(value) else value
