"""Child processes of this one: started together, watched, and never left behind."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from unisono.fabric.local.forked import Fork, run_forked
from unisono.fabric.local.parent import die_with


@dataclass(frozen=True)
class ChildExit:
    """A child that has ended, with its exit status; negative: the signal that killed it."""

    name: str
    status: int
    title: str = field(default="", compare=False)
    """The name that the process had in ``top`` at its end."""

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, and not a bug of its own."""
        return self.status < 0

    @property
    def how(self) -> str:
        if self.killed:
            return f"killed by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def can_fork() -> bool:
    """Whether this process has one thread, so that a fork of it misses none."""
    # Not ``threading.active_count``: other modules have threads that it does not count.
    return len(sys._current_frames()) == 1


class ChildProcesses:
    """Starts processes by name, and says which has ended.

    A child is told by the kernel to die when this process dies, however that happens.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[subprocess.Popen[bytes] | Fork, int]] = {}
        self._waiting: dict[str, tuple[float, Callable[[], None]]] = {}

    @property
    def running(self) -> list[str]:
        """Names of those that run, or will be started after a while."""
        return sorted([*self._running, *self._waiting])

    @property
    def started(self) -> list[str]:
        return sorted(self._running)

    def now(self) -> float:
        return time.monotonic()

    def start_later(
        self,
        seconds: float,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        fork: bool = False,
    ) -> None:
        """As ``start``, after so many seconds; ``wait`` sees to it."""
        start = partial(self.start, name, command, environment, fork=fork)
        self._waiting[name] = (self.now() + seconds, start)

    def forget_waiting(self) -> None:
        """Those that have not been started yet need not be."""
        self._waiting.clear()

    def end(self, name: str) -> None:
        """Kills a child that nobody needs; ``wait`` does not tell of its end."""
        self._running[name][0].kill()
        self._reap(name)

    def pid(self, name: str) -> int:
        return self._running[name][0].pid

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: Path | None = None,
        *,
        fork: bool = False,
    ) -> None:
        """Starts a child; its environment is this process' with ``environment`` on top.

        What it prints is appended to ``output``; without one it goes where this process' goes. With
        ``fork`` the command is ``python -m MODULE ...`` of a module that is imported here; where
        this process has one thread, the child is a fork of it.
        """
        parent = os.getpid()

        def bind() -> None:
            # Ctrl-C at a terminal reaches all; this process sees to the end of its children.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            die_with(parent)

        both = {**os.environ, **environment}
        process: subprocess.Popen[bytes] | Fork
        if fork and output is None and can_fork():
            process = run_forked(command[2], command[3:], environment, bind)
        elif output is None:
            process = subprocess.Popen(list(command), env=both, preexec_fn=bind)
        else:
            with output.open("ab") as file:
                process = subprocess.Popen(
                    list(command),
                    env=both,
                    preexec_fn=bind,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
        self._running[name] = (process, os.pidfd_open(process.pid))

    def wait(self, seconds: float | None = None) -> list[ChildExit]:
        """Waits until at least one child has ended, or the time is up."""
        deadline = None if seconds is None else self.now() + seconds
        while True:
            self._start_due()
            due = [when for when, _ in self._waiting.values()]
            next_ = min([*due, *([] if deadline is None else [deadline])], default=None)
            ended = self._poll(None if next_ is None else next_ - self.now())
            if ended or (deadline is not None and self.now() >= deadline):
                return ended

    def _start_due(self) -> None:
        for name, (when, start) in list(self._waiting.items()):
            if when <= self.now():
                del self._waiting[name]
                start()

    def _poll(self, seconds: float | None) -> list[ChildExit]:
        poll = select.poll()
        names = {}
        for name, (_, descriptor) in self._running.items():
            poll.register(descriptor, select.POLLIN)
            names[descriptor] = name
        limit = None if seconds is None else max(0, math.ceil(seconds * 1000))
        ended = [names[descriptor] for descriptor, _ in poll.poll(limit)]
        return [self._reap(name) for name in sorted(ended)]

    def stop(self, grace: float) -> None:
        """Asks the rest to end, waits up to ``grace`` seconds, then kills."""
        self.forget_waiting()
        deadline = time.monotonic() + grace
        for process, _ in self._running.values():
            process.terminate()
        while self._running and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        for process, _ in list(self._running.values()):
            process.kill()
        for name in list(self._running):
            self._reap(name)

    def _reap(self, name: str) -> ChildExit:
        process, descriptor = self._running.pop(name)
        title = ""
        with suppress(OSError):  # it may have been waited for
            title = Path(f"/proc/{process.pid}/comm").read_text(errors="replace").rstrip("\n")
        status = process.wait()
        os.close(descriptor)
        return ChildExit(name, status, title)
