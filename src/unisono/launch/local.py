"""Starts the processes of a run on this host, and sees them through."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.coordinator.requests import Action, RequestFile
from unisono.errors import RESUME, Cause, UserError
from unisono.fabric.limits import require_files
from unisono.fabric.local.child_processes import ChildExit, ChildProcesses
from unisono.fabric.local.stack_dump import take_stack_dump
from unisono.launch.control import CHECKPOINT_TEXT, STACK, STOP_TEXT, Control
from unisono.launch.coordinator_main import BEGAN, REQUESTS, read_outcome
from unisono.launch.exit_codes import ABANDONED, DIVERGED, INCOMPLETE, left_with
from unisono.launch.respawn import Respawn
from unisono.launch.room import check_memory
from unisono.learner.placement import (
    DIRECTORY,
    LEARNER,
    LEARNERS,
    SERVES,
    TIMEOUT,
    stacks_file,
)
from unisono.runs.directory import write_atomically

COORDINATOR = "coordinator"
_LEARNER, _SERVER = "learner", "server"
GRACE_S = 4.0
"""Seconds that everybody has to leave when the run is abandoned."""
MOST_RESTARTS = 100
ASKED_S = 0.5
"""Seconds between two looks at what else there is to do, such as more learners that are wanted."""
STACK_S = 2.0
"""Seconds that a learner has to show its stacks."""


@dataclass
class Outcome:
    """How a run ended."""

    failed: bool
    reason: str
    coordinator: dict[str, Any]
    lost: list[str] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        """Whether it failed because it diverged."""
        cause = (self.coordinator.get("failure") or {}).get("cause")
        return self.failed and cause == Cause.DIVERGED.value


@dataclass(kw_only=True)
class Launch:
    """N learners, perhaps servers, and a coordinator, as processes that live and die alone.

    When a signal ends a learner or one of its processes, or it diverges alone, the others go on,
    and a new one with a number of its own takes its place after a pause, as long as one is left to
    get the model from, none has finished and the limit of ``respawn.py`` is not reached. The same
    holds for servers, which hold shards of the model and train nothing. One that
    ends with another exit status than 0 has failed: all are asked to leave, and killed after
    ``GRACE_S`` seconds. The coordinator is started again whenever it is killed.
    """

    command: Sequence[str]
    """What each learner runs."""
    learners: int
    servers: int = 0
    timeout: float = 10.0
    began: float | None = None
    """When the run's clock is at 0, by the monotonic clock; None: when the coordinator starts."""
    metrics: Path | None = None
    respawn: bool = True
    """Whether learners that die are replaced."""
    forks: bool = False
    """Whether children may be forks of this process (``fabric/local/forked.py``)."""
    processes: int = 1
    """Those of a learner, itself included."""
    make_children: Callable[[], ChildProcesses] = ChildProcesses
    """Another kind starts all processes of a learner; here a learner starts its others itself."""
    threads: int = 0
    """Cores a process; 0: the cores divided among all processes."""
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    environment: Mapping[str, str] = field(default_factory=dict)
    """What learners are told besides."""
    on_start: Callable[[ChildProcesses], None] = lambda children: None
    on_turn: Callable[[], None] = lambda: None
    """Called twice a second."""
    wanted: Callable[[], int] | None = None
    """How many learners there should be by now: more than ``learners`` are started when it says so.

    It is asked twice a second.
    """
    control: Path | None = None
    """Where to note how the run can be asked for something while it runs; None: it cannot."""

    def run(self) -> Outcome:
        """Runs to the end."""
        require_files(self.learners + self.servers)
        try:
            directory = Path(tempfile.mkdtemp(prefix="unisono-"))
        except OSError as error:
            raise UserError(f"no temporary directory can be made: {error.strerror}") from None
        self._children = self.make_children()
        self._wanted_learners = 0
        self._next = 0
        self._finished = 0
        self._lost: list[str] = []
        self._unsaid: dict[str, str] = {}
        self._respawns = Respawn()
        self._removed: set[str] = set()
        self._control: Control | None = None
        try:
            if self.began is not None:
                write_atomically(directory / BEGAN, str(self.began).encode())
            self._start_coordinator(directory)
            self._grow(directory, self.learners)
            for _ in range(self.servers):
                self._start_member(directory, _SERVER)
            self.on_start(self._children)
            if self.control is not None:
                self._control = Control(self.control, directory, self._handlers(directory))
            return self._watch(directory)
        finally:
            try:
                if self._control is not None:
                    self._control.close()
            finally:
                self._children.stop(GRACE_S)
                shutil.rmtree(directory, ignore_errors=True)

    def _grow(self, directory: Path, learners: int) -> None:
        while self._wanted_learners < learners:
            self._start_member(directory, _LEARNER)
            self._wanted_learners += 1

    def _start_coordinator(self, directory: Path) -> None:
        command = [sys.executable, "-m", "unisono.launch.coordinator_main", str(directory)]
        command += ["--learners", str(self._members), "--timeout", str(self.timeout)]
        if self.metrics is not None:
            command += ["--metrics", str(self.metrics)]
        self._children.start(COORDINATOR, command, {"OMP_NUM_THREADS": "1"}, fork=self.forks)

    @property
    def _members(self) -> int:
        """How many the coordinator waits for."""
        return self.learners + self.servers

    def _start_member(self, directory: Path, role: str, pause: float = 0.0) -> str:
        """Starts one more, after a pause; returns its name."""
        number, self._next = self._next, self._next + 1
        threads = self.threads or max(1, (os.cpu_count() or 1) // (self.learners * self.processes))
        threads = 1 if role == _SERVER else threads
        environment = {
            **({SERVES: "1"} if role == _SERVER else {}),
            DIRECTORY: str(directory),
            LEARNER: str(number),
            LEARNERS: str(self.learners),
            TIMEOUT: str(self.timeout),
            "OMP_NUM_THREADS": str(threads),
            **self.environment,
        }
        name = f"{role} {number}"
        if pause:
            self._children.start_later(pause, name, self.command, environment, fork=self.forks)
        else:
            self._children.start(name, self.command, environment, fork=self.forks)
        return name

    def _watch(self, directory: Path) -> Outcome:
        restarts, failure = 0, ""
        while self._children.running:
            self.on_turn()
            if self._control is not None:
                self._control.answer()
            batch = self._children.wait(ASKED_S)
            for ended in batch:
                if ended.name == COORDINATOR:
                    if ended.status == 0:
                        # Nobody can join any more; if the run has diverged, nobody need go on.
                        told = read_outcome(directory, self._members)
                        self._end_latecomers(told)
                        failure = failure or _divergence(told)
                        continue
                    restarts += 1
                    if restarts > MOST_RESTARTS or not ended.killed:
                        raise UserError(
                            f"the coordinator ended with {ended.how}: its message is above; "
                            f"{RESUME}"
                        )
                    self.say(f"coordinator {ended.how}; started again")
                    self._start_coordinator(directory)
                elif ended.killed or left_with(ended, DIVERGED, INCOMPLETE):
                    self._on_death(directory, ended, is_last=ended is batch[-1])
                elif ended.status == 0 and ended.name in self._removed:
                    self.say(f"{ended.name} has left")
                elif ended.status == 0:
                    self._finished += 1
                    self._children.forget_waiting()
                else:
                    self._children.forget_waiting()
                    if not left_with(ended, ABANDONED):
                        failure = failure or f"{ended.name} failed ({ended.how})"
            self._say_of_replacements()
            if failure or not _learners(self._children.running):
                if self._children.started:
                    self._children.wait(GRACE_S)
                self._children.stop(GRACE_S)
            elif self.wanted is not None and self._children.running:
                self._grow(directory, self.wanted())
        self.on_turn()
        return self._outcome(directory, failure)

    def _on_death(self, directory: Path, ended: ChildExit, *, is_last: bool) -> None:
        """The others go on; the dead one is replaced while there is somebody to go on with."""
        self._lost.append(ended.name)
        diverged = left_with(ended, DIVERGED)
        how = ended.how if ended.killed else "one of its processes died"
        line = f"{ended.name} diverged" if diverged else f"{ended.name} was lost ({how})"
        if set(self._children.started) <= {COORDINATOR}:
            self._children.forget_waiting()
            if not diverged:
                self.say(line + "; it was the last one" * is_last)
            return
        line += "; the others go on"
        if self.respawn and not self._finished and ended.name not in self._removed:
            pause = self._respawns.pause(self._children.now())
            if pause is None:
                line += f"; after {self._respawns.count} replacements it is not replaced"
            elif not diverged:
                replacement = self._start_member(directory, ended.name.split()[0], pause)
                line += f"; {replacement} replaces it in {pause:g} s"
            else:
                replacement = self._start_member(directory, _LEARNER, pause)
                self._unsaid[replacement] = f"{line}; {replacement} replaces it"
                return
        self.say(line)

    def _end_latecomers(self, told: dict[str, Any]) -> None:
        """The coordinator is gone: who has not joined by now would wait for it in vain."""
        self._children.forget_waiting()
        for name in set(self._children.started) - {COORDINATOR}:
            if int(name.split()[1]) in told["learners"]:
                continue
            self._children.end(name)
            self.say(f"{name} came too late: the run was over")

    # What can be asked while it runs.

    def _handlers(self, directory: Path) -> dict[str, Callable[[int | None], dict[str, str]]]:
        requests = RequestFile(directory / REQUESTS)

        def said(text: str) -> dict[str, str]:
            self.say(text)
            return {"text": text}

        def tell(action: Action, text: str) -> dict[str, str]:
            requests.append(action)
            return said(text)

        def add(_: int | None) -> dict[str, str]:
            if self._finished or COORDINATOR not in self._children.started:
                raise UserError("the run is ending: learners can no longer join")
            learners = len(self._children.started)  # with the new one in place of the coordinator
            check_memory(learners, self.processes)
            require_files(learners)
            requests.append(Action.ADD, self._next)
            return said(f"{self._start_member(directory, _LEARNER)} was added")

        def remove(number: int | None) -> dict[str, str]:
            name = self._running_learner(number)
            if name in self._removed:
                raise UserError(f"{name} is already leaving")
            if set(_learners(self._children.started)) - self._removed <= {name}:
                raise UserError(f"{name} is the last learner: stop the run instead")
            requests.append(Action.REMOVE, number)
            self._removed.add(name)
            return said(f"{name} was asked to leave")

        def stack(number: int | None) -> dict[str, str]:
            name = self._running_learner(number)
            file = stacks_file(directory, number or 0)
            found = take_stack_dump(self._children.pid(name), file, STACK_S)
            if not found:
                raise UserError(
                    f"{name} shows no stack: it is stopped by a signal, still starting, or cannot "
                    f"write {file}"
                )
            return {"text": f"stacks of {name}", "stack": found}

        return {
            Action.ADD.value: add,
            Action.REMOVE.value: remove,
            Action.CHECKPOINT.value: lambda _: tell(Action.CHECKPOINT, CHECKPOINT_TEXT),
            Action.STOP.value: lambda _: tell(Action.STOP, STOP_TEXT),
            STACK: stack,
        }

    def _running_learner(self, number: int | None) -> str:
        name = f"learner {number}"
        if name not in self._children.started:
            raise UserError(f"{name} is not running")
        return name

    def _say_of_replacements(self) -> None:
        """Of one that diverged it is said when it is replaced: by then all may have diverged."""
        for name in [name for name in self._unsaid if name in self._children.started]:
            self.say(self._unsaid.pop(name))

    def _outcome(self, directory: Path, failure: str) -> Outcome:
        told = read_outcome(directory, self._members)
        failure = _divergence(told) or failure or (told["failure"] or {}).get("text", "")
        if not failure and not told["over"] and not self._finished and not told["orderly"]:
            failure = f"every learner was lost; {RESUME}"
        return Outcome(bool(failure), failure, told, self._lost)


def _learners(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(_LEARNER)]


def _divergence(told: dict[str, Any]) -> str:
    """Why the run has diverged, by what the coordinator knows; empty: it has not."""
    failure = told["failure"] or {}
    return str(failure["text"]) if failure.get("cause") == Cause.DIVERGED.value else ""
