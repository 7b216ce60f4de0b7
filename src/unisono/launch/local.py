"""Starts the processes of a run on this host, and sees them through."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.errors import UserError
from unisono.fabric.local.child_processes import ChildExit, ChildProcesses
from unisono.launch.coordinator_main import OUTCOME
from unisono.launch.exit_codes import ABANDONED
from unisono.learner.placement import DIRECTORY, LEARNER, LEARNERS, TIMEOUT

COORDINATOR = "coordinator"
GRACE_S = 4.0
"""Seconds that everybody has to leave when the run is abandoned."""
MOST_RESTARTS = 100
ASKED_S = 0.5
"""Seconds between two questions whether more learners are wanted."""


@dataclass
class Outcome:
    """How a run ended."""

    failed: bool
    reason: str
    coordinator: dict[str, Any]
    lost: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Launch:
    """N learners and a coordinator, as processes that live and die alone.

    A learner that a signal ends is weather: the others go on. One that ends with an exit status
    other than 0 has failed: all are asked to leave, and killed after ``GRACE_S`` seconds. The
    coordinator is started again whenever it is killed.
    """

    command: Sequence[str]
    """What each learner runs."""
    learners: int
    timeout: float = 10.0
    metrics: Path | None = None
    threads: int = 0
    """Cores a learner; 0: the cores divided among the learners."""
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    on_start: Callable[[ChildProcesses], None] = lambda children: None
    wanted: Callable[[], int] | None = None
    """How many learners there should be by now: more than ``learners`` are started when it says so.

    It is asked twice a second.
    """

    def run(self) -> Outcome:
        """Runs to the end."""
        directory = Path(tempfile.mkdtemp(prefix="unisono-"))
        self._children = ChildProcesses()
        try:
            self._start_coordinator(directory)
            self._started = 0
            self._grow(directory, self.learners)
            self.on_start(self._children)
            return self._watch(directory)
        finally:
            self._children.stop(GRACE_S)
            shutil.rmtree(directory, ignore_errors=True)

    def _grow(self, directory: Path, learners: int) -> None:
        while self._started < learners:
            self._start_learner(directory, self._started)
            self._started += 1

    def _start_coordinator(self, directory: Path) -> None:
        command = [sys.executable, "-m", "unisono.launch.coordinator_main", str(directory)]
        command += ["--learners", str(self.learners), "--timeout", str(self.timeout)]
        if self.metrics is not None:
            command += ["--metrics", str(self.metrics)]
        self._children.start(COORDINATOR, command, {"OMP_NUM_THREADS": "1"})

    def _start_learner(self, directory: Path, number: int) -> None:
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.learners)
        environment = {
            DIRECTORY: str(directory),
            LEARNER: str(number),
            LEARNERS: str(self.learners),
            TIMEOUT: str(self.timeout),
            "OMP_NUM_THREADS": str(threads),
        }
        self._children.start(f"learner {number}", self.command, environment)

    def _watch(self, directory: Path) -> Outcome:
        restarts, failure, lost = 0, "", []
        while self._children.running:
            for ended in self._children.wait(None if self.wanted is None else ASKED_S):
                if ended.name == COORDINATOR:
                    if ended.status == 0:
                        continue
                    restarts += 1
                    if restarts > MOST_RESTARTS or not ended.killed:
                        raise UserError(f"the coordinator ended with {ended.how}")
                    self.say(f"coordinator {ended.how}; started again")
                    self._start_coordinator(directory)
                elif ended.killed:
                    self.say(f"{ended.name} was lost ({ended.how}); the others go on")
                    lost.append(ended.name)
                elif ended.status != 0 and not failure:
                    failure = self._failure(ended)
            if failure or self._children.running == [COORDINATOR]:
                self._children.wait(GRACE_S)
                self._children.stop(GRACE_S)
            elif self.wanted is not None and self._children.running:
                self._grow(directory, self.wanted())
        return self._outcome(directory, failure, lost)

    def _failure(self, ended: ChildExit) -> str:
        if ended.status == ABANDONED:
            return ""
        return f"{ended.name} failed ({ended.how})"

    def _outcome(self, directory: Path, failure: str, lost: list[str]) -> Outcome:
        path = directory / OUTCOME
        told = json.loads(path.read_text()) if path.is_file() else {}
        if not failure and told.get("failure"):
            failure = told["failure"]["text"]
        if not failure and not told.get("over"):
            failure = "every learner was lost" if len(lost) == self._started else ""
        return Outcome(bool(failure), failure, told, lost)
