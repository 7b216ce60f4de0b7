"""The children of a launcher whose learners have several processes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unisono.fabric.local.child_processes import ChildExit, ChildProcesses
from unisono.launch.exit_codes import DIVERGED, INCOMPLETE, left_with, lost
from unisono.learner.placement import LEARNER
from unisono.learner.slices import PROCESS, PROCESSES

_GRACE_S = 4.0
"""Seconds from the end of a process that misses another one until its learner counts as lost."""


class LearnerProcesses(ChildProcesses):
    """Starts all processes of a learner, and ends them with the first that ends.

    Whoever asks sees learners, by the name of process 0. A process that ends since it misses
    another one (``INCOMPLETE``) does not tell why: the other may have failed, and be about to end
    with a message.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._learner_of: dict[str, str] = {}
        """Of each process of a learner."""
        self._incomplete: dict[str, float] = {}
        """When learners that miss a process are lost at the latest."""
        self._ended: set[str] = set()

    @property
    def running(self) -> list[str]:
        """Names of those that run, or will be started after a while."""
        return self._of_learners(super().running)

    @property
    def started(self) -> list[str]:
        """Names of those that run."""
        return self._of_learners(super().started)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: Path | None = None,
        *,
        fork: bool = False,
    ) -> None:
        """As a child of its own; of a learner, with its other processes."""
        if LEARNER not in environment:
            super().start(name, command, environment, output, fork=fork)
            return
        for rank in range(self._size):
            each = f"process {rank} of {name}" if rank else name
            self._learner_of[each] = name
            numbers = {PROCESS: str(rank), PROCESSES: str(self._size)}
            super().start(each, command, {**environment, **numbers}, output, fork=fork)

    def end(self, name: str) -> None:
        """Kills all processes of a learner."""
        self._ended.add(name)
        for each in self._processes(name):
            super().end(each)

    def wait(self, seconds: float | None = None) -> list[ChildExit]:
        """Waits until at least one learner has ended, or the time is up."""
        deadline = None if seconds is None else self.now() + seconds
        while True:
            times = [*self._incomplete.values(), *([] if deadline is None else [deadline])]
            left = max(0.0, min(times) - self.now()) if times else None
            found = [self._judge(one) for one in super().wait(left)]
            for name, until in list(self._incomplete.items()):
                if not self._processes(name) or until <= self.now():
                    found.append(self._lost(name))
            told = [one for one in found if one is not None]
            if told or (deadline is not None and self.now() >= deadline):
                return told

    def _judge(self, one: ChildExit) -> ChildExit | None:
        """What the end of a process means for its learner; None: nothing yet."""
        name = self._learner_of.get(one.name)
        if name is None:
            return one
        if name in self._ended or (one.name != name and one.status == 0):
            return None
        if left_with(one, INCOMPLETE):
            self._incomplete.setdefault(name, self.now() + _GRACE_S)
            return None
        if one.killed or one.status == 0 or left_with(one, DIVERGED):
            if one.name != name:
                return self._lost(name)
            self.end(name)
        self._ended.add(name)
        self._incomplete.pop(name, None)
        return one

    def _lost(self, name: str) -> ChildExit:
        self._incomplete.pop(name, None)
        self.end(name)
        return lost(name)

    def _processes(self, name: str) -> list[str]:
        return [each for each in super().started if self._learner_of.get(each) == name]

    def _of_learners(self, names: list[str]) -> list[str]:
        return sorted({self._learner_of.get(each, each) for each in names})
