"""A run on a Ray cluster: learners come up to a number, die and are replaced."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.config import LinksConfig
from unisono.errors import UserError
from unisono.fabric.local.background import now
from unisono.fabric.network.auth import make_credentials
from unisono.launch.coordinator_main import has_begun
from unisono.launch.learner_job import LearnerJob
from unisono.launch.local import GRACE_S, Outcome
from unisono.launch.ray_actors import CoordinatorActor, LearnerActor, Report, ReportKind, folders_of
from unisono.launch.ray_engine import NODE_LABEL, living_nodes
from unisono.launch.ray_output import ClusterOutput
from unisono.launch.respawn import Respawn
from unisono.learner.placement import (
    COORDINATOR_AT,
    CREDENTIALS,
    LEARNER,
    LEARNERS,
    TIMEOUT,
    link_environment,
)

NEWS_S = 30.0
"""Seconds after which one is told that the run still waits for learners."""
TURN_S = 0.5
"""Seconds between two calls of ``on_turn``."""
MOST_STILLBORN = 5
"""Learners in a row that may die before they are ready."""


@dataclass
class _Learner:
    """A learner's actor, from the wish for it to its end."""

    number: int
    actor: Any
    prepared: Any
    ended: Any
    place: Report | None = None

    @property
    def next(self) -> Any:
        """What is waited for: that it is ready, then that it has ended."""
        return self.prepared if self.place is None else self.ended


@dataclass(kw_only=True)
class ClusterRun:
    """A coordinator and learners as actors of a Ray cluster.

    All ``most`` learners are asked for at once: Ray places those for which there is room, spread
    over the machines, and the others when a machine joins. The run begins with ``least``. One that
    dies is replaced by a newcomer with a number of its own, after a pause and up to the limit of
    ``respawn.py``; one whose machine has gone, at once. The coordinator is on this machine, and is
    started again by Ray whenever it dies.
    """

    ray: Any
    work: LearnerJob
    least: int
    most: int
    cores: int = 1
    gpus: int = 0
    timeout: float = 10.0
    metrics: Path | None = None
    respawn: bool = True
    """Whether learners that die are replaced."""
    links: LinksConfig = field(default_factory=LinksConfig)
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    on_turn: Callable[[], None] = lambda: None
    """Called twice a second."""
    clock: Callable[[], float] = now
    _learners: dict[int, _Learner] = field(default_factory=dict, init=False)
    _next: int = field(default=0, init=False)
    _unfit: dict[str, str] = field(default_factory=dict, init=False)
    _respawns: Respawn = field(default_factory=Respawn, init=False)
    _due: dict[int, float] = field(default_factory=dict, init=False)
    """When learners will be started that replace others."""
    _stillborn: int = field(default=0, init=False)
    _closing: bool = field(default=False, init=False)
    _lost: list[str] = field(default_factory=list, init=False)
    _ended: list[int] = field(default_factory=list, init=False)
    """Learners that came to the end of their work by themselves."""
    _failure: str = field(default="", init=False)

    def run(self) -> Outcome:
        """Runs to the end."""
        self._directory = Path(tempfile.mkdtemp(prefix="unisono-"))
        self._output = ClusterOutput(self._directory.name)
        with self._output.watched():
            return self._run()

    def _run(self) -> Outcome:
        self._told = {CREDENTIALS: make_credentials(), **link_environment(self.links)}
        self._coordinator = self._start_coordinator()
        try:
            self._endpoint = self._find_coordinator()
            self._served = self._coordinator.serve.remote()
            for _ in range(self.most):
                self._start_learner(self._new_number())
            return self._watch()
        finally:
            for learner in self._learners.values():
                self.ray.kill(learner.actor)
            self.ray.kill(self._coordinator)
            for folder in (self._directory, *folders_of(self._directory.name)):
                shutil.rmtree(folder, ignore_errors=True)

    def _start_coordinator(self) -> Any:
        here = self.ray.get_runtime_context().get_node_id()
        actor = self.ray.remote(CoordinatorActor).options(
            name="coordinator",
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            label_selector={NODE_LABEL: here},
        )
        metrics = None if self.metrics is None else str(self.metrics)
        return actor.remote(
            str(self._directory),
            self.least,
            self.timeout,
            metrics,
            self.ray.util.get_node_ip_address(),
            self._told,
        )

    def _find_coordinator(self) -> str:
        try:
            endpoint: str = self.ray.get(self._coordinator.endpoint.remote())
        except self.ray.exceptions.RayError as error:
            raise UserError(f"the coordinator could not be started: {_reason(error)}") from None
        self.say(f"coordinator is at {endpoint.split()[0]}")
        return endpoint

    def _new_number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def _start_learner(self, number: int) -> None:
        environment = {
            COORDINATOR_AT: self._endpoint,
            **self._told,
            LEARNER: str(number),
            LEARNERS: str(self.least),
            TIMEOUT: str(self.timeout),
        }
        avoid = {NODE_LABEL: f"!in({','.join(self._unfit)})"} if self._unfit else None
        actor = (
            self.ray.remote(LearnerActor)
            .options(
                name=f"learner {number}",
                num_cpus=self.cores,
                num_gpus=self.gpus,
                scheduling_strategy="SPREAD",
                label_selector=avoid,
            )
            .remote(self.work, environment, self._directory.name)
        )
        self._learners[number] = _Learner(number, actor, actor.prepare.remote(), actor.run.remote())

    def _watch(self) -> Outcome:
        waited = 0.0
        while not self._failure:
            waiting = {learner.next: learner for learner in self._learners.values()}
            found, _ = self.ray.wait([self._served, *waiting], timeout=TURN_S)
            self.on_turn()
            self._start_due()
            if not found:
                waited = waited + TURN_S if self._waits_for_room else 0.0
                if waited >= NEWS_S:
                    waited = 0.0
                    have = f"{self._placed} of {self.least} learners have a place"
                    self.say(f"{have}; waiting for room")
            elif found[0] == self._served:
                break
            else:
                self._hear(waiting[found[0]])
        self._let_end()
        self.on_turn()
        return self._outcome()

    @property
    def _placed(self) -> int:
        return sum(learner.place is not None for learner in self._learners.values())

    @property
    def _waits_for_room(self) -> bool:
        return self._placed < min(self.least, len(self._learners)) and not self._closing

    def _hear(self, learner: _Learner) -> None:
        """Something has happened to a learner."""
        try:
            report: Report = self.ray.get(learner.next)
        except self.ray.exceptions.RayActorError as death:
            self._on_death(learner, death)
        except self.ray.exceptions.RayTaskError as error:
            self._failure = f"learner {learner.number} failed:\n{error}"
        else:
            self._on_report(learner, report)

    def _on_report(self, learner: _Learner, report: Report) -> None:
        if report.kind is ReportKind.READY:
            learner.place = report
            self._stillborn = 0
            self.say(f"learner {learner.number} is on {report.host}, process {report.pid}")
            return
        if report.kind is not ReportKind.UNFIT:
            self._ended.append(learner.number)
        if report.kind is ReportKind.FINISHED:
            self._close()  # first, or one of those who wait would get the place
        self._remove(learner)
        if report.kind is ReportKind.FAILED:
            self.say(report.text)
            self._failure = f"learner {learner.number} failed on {report.host}"
        elif report.kind is ReportKind.UNFIT:
            self._avoid(report)
        elif report.kind is ReportKind.CUT_OFF:
            line = f"learner {learner.number} was cut off ({report.text}); the others go on"
            self.say(line + self._replace(learner))
        elif report.kind is ReportKind.DIVERGED:
            self._replace(learner)

    def _on_death(self, learner: _Learner, death: Exception) -> None:
        self._remove(learner)
        reason = _reason(death)
        if learner.place is None:
            self._stillborn += 1
            if self._stillborn >= MOST_STILLBORN:
                self._failure = f"{self._stillborn} learners died before they were ready: {reason}"
                return
        line = f"learner {learner.number} was lost ({reason}); the others go on"
        self.say(line + self._replace(learner))

    def _replace(self, learner: _Learner) -> str:
        """Sees to a newcomer, if there is to be one; what is to be said of it."""
        self._lost.append(f"learner {learner.number}")
        if self._closing:
            return ""
        pause = self._pause_after(learner) if self.respawn else None
        if pause is not None:
            number = self._new_number()
            self._due[number] = self.clock() + pause
            return f"; learner {number} replaces it in {pause:g} s"
        self._check_enough()
        count = self._respawns.count
        return f"; after {count} replacements it is not replaced" if self.respawn else ""

    def _pause_after(self, learner: _Learner) -> float | None:
        """Deaths count unless the machine has gone: that is no fault of its learners."""
        nodes = {node.id for node in living_nodes(self.ray)}
        if learner.place is not None and learner.place.node not in nodes:
            return 0.0
        return self._respawns.pause(self.clock())

    def _check_enough(self) -> None:
        """Nobody replaces a learner: a run that has not begun may be unable to."""
        left = len(self._learners) + len(self._due)
        if left < self.least and not has_begun(self._directory, self.least):
            self._failure = f"{left} of {self.least} learners are left, too few to begin"

    def _start_due(self) -> None:
        for number in [number for number, when in self._due.items() if when <= self.clock()]:
            del self._due[number]
            self._start_learner(number)

    def _avoid(self, report: Report) -> None:
        """That machine gets no more learners."""
        if report.node not in self._unfit:
            self._unfit[report.node] = report.text
            self.say(f"no learner on {report.host}: {report.text}")
        if all(node.id in self._unfit for node in living_nodes(self.ray) if node.cores):
            self._failure = f"no machine can do the work; {report.host}: {report.text}"
        elif not self._closing:
            self._start_learner(self._new_number())

    def _remove(self, learner: _Learner) -> None:
        del self._learners[learner.number]
        self.ray.kill(learner.actor)

    def _close(self) -> None:
        """Somebody has finished: who has no place yet need not come any more."""
        self._closing = True
        self._due.clear()
        for learner in [each for each in self._learners.values() if each.place is None]:
            self._remove(learner)

    def _let_end(self) -> None:
        """Those who are there have a while to leave in good order; their last lines are printed."""
        placed = {each.ended: each for each in self._learners.values() if each.place is not None}
        if placed:
            ended, _ = self.ray.wait(list(placed), num_returns=len(placed), timeout=GRACE_S)
            for reference in ended:
                with suppress(self.ray.exceptions.RayError):  # It has died.
                    report: Report = self.ray.get(reference)
                    if report.kind is ReportKind.FAILED and not self._failure:
                        self._on_report(placed[reference], report)  # The coordinator was faster.
                    else:
                        self._ended.append(placed[reference].number)
        self._output.wait_for(self._ended)

    def _outcome(self) -> Outcome:
        if self._failure:
            return Outcome(True, self._failure, {}, self._lost)
        try:
            told = self.ray.get(self._served)
        except self.ray.exceptions.RayError as error:
            raise UserError(f"the coordinator ended: {_reason(error)}") from None
        failure = (told["failure"] or {}).get("text", "")
        if not failure and not told["over"] and not self._learners:
            failure = "every learner was lost"
        return Outcome(bool(failure), failure, told, self._lost)


def _reason(error: Exception) -> str:
    """What happened, of all that Ray tells about it."""
    text = " ".join(str(error).split())
    if "is unavailable" in text:
        return "it cannot be reached"
    found = re.search(r"because (its [a-z ]+ has died|[^.]+)", text)
    return found[1] if found else text[:200] or type(error).__name__
