"""A run's directory, read on whenever somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path

from unisono.errors import UserError
from unisono.fabric.files import file_age
from unisono.fabric.local.background import now
from unisono.learner.log import METRICS
from unisono.runs.directory import RunDirectory
from unisono.runs.tail import Tail
from unisono.watch.live_run import LiveRun

LEAST_S = 0.4
"""Seconds between two looks at the files."""
BLOCK = 16 * 2**20
"""Bytes of the metrics that are read at a time: of a long run the page shows the rest later."""
QUIET_S = 15.0
"""Seconds without an event after which a run may have been killed."""


class Stage(Enum):
    """Where a run is."""

    STARTING = "starting"
    RUNNING = "running"
    QUIET = "quiet"
    """It should be running, and writes nothing."""
    FINISHED = "finished"
    FAILED = "failed"


def find_run(path: Path) -> RunDirectory:
    """A directory that can be watched: of a run, or of a loop of one's own with checkpoints.

    Raises:
        UserError: there is none at the path.
    """
    run = RunDirectory(path)
    if run.config.is_file() or run.metrics.is_file():
        return run
    if not path.is_dir():
        raise UserError(f"{path} is not a run: no such directory")
    inside = sorted(metrics.parent.name for metrics in path.glob(f"*/{METRICS}"))
    if inside:
        raise UserError(f"{path} holds several runs: name one of them, such as {path / inside[0]}")
    raise UserError(f"{path} is not a run: it has neither {run.config.name} nor {METRICS}")


class Feed:
    """The events of a run as they come. The directory need not be there yet.

    Attributes:
        live: what they tell.
        version: how often something new was found.
    """

    def __init__(self, run: RunDirectory, clock: Callable[[], float] = now) -> None:
        self.run = run
        self.live = LiveRun()
        self.version = 0
        self._clock = clock
        self._tail = Tail(run.metrics)
        self._looked: float | None = None
        self._grown: float | None = None
        self._summed_up: int | None = None

    @property
    def malformed(self) -> int:
        """Lines of the metrics that are no events."""
        return self._tail.malformed

    @property
    def is_behind(self) -> bool:
        """Whether some of what was written is not read yet."""
        return self._tail.is_behind

    def refresh(self) -> None:
        """Reads what is new, unless that was done just now and the run has not ended since."""
        at = self._clock()
        # Looked at before the metrics: what it sums up has been read then.
        before, self._summed_up = self._summed_up, _modified(self.run.summary)
        is_recent = self._looked is not None and at - self._looked < LEAST_S
        if is_recent and self._summed_up == before:
            return
        restarts, found = self._tail.restarts, False
        age = file_age(self.run.metrics)
        for event in self._tail.read(BLOCK):
            if self._tail.restarts != restarts:
                self.live, restarts = LiveRun(), self._tail.restarts
            self.live.take(event)
            found = True
        if found:
            # At the first look it may be old already; later ones see it grow.
            self._grown = at - ((age or 0.0) if self._looked is None else 0.0)
        self.version += found
        self._looked = at

    @property
    def quiet_s(self) -> float:
        """Seconds since the last event was written."""
        if self._grown is None or self._looked is None:
            return 0.0
        return self._looked - self._grown

    @property
    def time(self) -> float:
        """By the run's clock; that of a simulated or ended run stands where it is."""
        running = self.stage in (Stage.RUNNING, Stage.QUIET)
        going = running and not self.live.simulated and not self.is_behind
        return self.live.time + (self.quiet_s if going else 0.0)

    @property
    def stage(self) -> Stage:
        """Where the run is."""
        if self.live.failure:
            return Stage.FAILED
        if self._is_finished():
            return Stage.FINISHED
        if not self.live.here:
            if not self.live.learners:
                return Stage.STARTING
            # Others may come, or the summary.
            over = self.live.simulated or self.quiet_s > QUIET_S
            return Stage.FINISHED if over else Stage.RUNNING
        return Stage.QUIET if self.quiet_s > QUIET_S else Stage.RUNNING

    def _is_finished(self) -> bool:
        """A summary of an earlier part of a run that was resumed is older than its metrics."""
        metrics = _modified(self.run.metrics)
        if self._summed_up is None or metrics is None:
            return False
        return self._summed_up >= metrics or (bool(self.live.learners) and not self.live.here)


def _modified(path: Path) -> int | None:
    """When the file was last written, in nanoseconds; None: there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
