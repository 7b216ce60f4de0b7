"""Real processes for tests: a time limit, and a report of who hung or died of what."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_ASK, _END = "ask", "end"


class ProcessesFailed(AssertionError):  # noqa: N818
    """Some process did not end well; the text says which, and how."""


class Parent:
    """The process that started this one, for its questions and answers; any thread may ask."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def ask(self, request: Any) -> Any:
        """Has the parent's ``serve`` called with the request, and waits for its answer."""
        with self._lock:
            self._pipe.send((_ASK, request))
            return self._pipe.recv()


@dataclass
class _Child:
    process: ForkServerProcess
    pipe: Connection
    stacks: Path
    serve: Callable[[Any], None] | None
    expendable: bool = False
    ended: bool = False
    result: Any = None
    trouble: str = ""


def _die_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _main(
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    pipe: Connection,
    stacks: str,
    asks: bool,
) -> None:
    """What a started process does. One that hangs writes its stacks when it is asked to."""
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_the_parent, daemon=True).start()
    with open(stacks, "w") as file:
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        try:
            result = target(Parent(pipe), *arguments) if asks else target(*arguments)
            pipe.send((_END, (result, "")))
        except BaseException:
            pipe.send((_END, (None, traceback.format_exc())))
        faulthandler.unregister(signal.SIGUSR1)


class Processes:
    """Some processes, each with a name. What is still alive at the end of the block is killed.

    ``target`` must be a function of a module; arguments and results must pickle.
    """

    def __init__(self, limit: float = 120.0) -> None:
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._children: dict[str, _Child] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="unisono-")

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._children):
            self._remove(name)
        self._folder.cleanup()

    @property
    def directory(self) -> Path:
        """A folder with a short name for these processes; it goes with them."""
        return Path(self._folder.name)

    def start(
        self,
        name: str,
        target: Callable[..., Any],
        *arguments: Any,
        serve: Callable[[Any], None] | None = None,
    ) -> None:
        """Starts a process that calls ``target``; in place of a dead one of that name, if any.

        With ``serve`` the target gets a ``Parent`` first. ``serve`` is called in ``wait`` with each
        of its requests, and sees to it that ``answer`` is called, now or later.
        """
        self._remove(name)
        ours, theirs = _CONTEXT.Pipe()
        stacks = self.directory / f"{name}.stacks"
        arguments = (target, arguments, theirs, str(stacks), serve is not None)
        process = _CONTEXT.Process(target=_main, args=arguments, name=name, daemon=True)
        process.start()
        theirs.close()
        self._children[name] = _Child(process, ours, stacks, serve)

    def answer(self, name: str, value: Any) -> None:
        """Answers the question of a process."""
        self._children[name].pipe.send(value)

    def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is dead. Its end is no trouble then."""
        child = self._children[name]
        child.expendable = True
        child.process.kill()
        child.process.join()

    def pause(self, name: str) -> None:
        """SIGSTOP; returns when the process stands still, or has ended before."""
        process = self._children[name].process
        _signal(process, signal.SIGSTOP)
        while process.is_alive() and _state(process) not in "TtZX":
            time.sleep(0.001)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        _signal(self._children[name].process, signal.SIGCONT)

    def allow(self, limit: float) -> None:
        """From now on the processes have so many seconds."""
        self._limit, self._deadline = limit, time.monotonic() + limit

    def wait(self, limit: float | None = None) -> dict[str, Any]:
        """What the targets returned, by name.

        Raises ``ProcessesFailed`` as soon as one raises, dies (unless it was killed here), or when
        the time is over (``limit`` seconds from now, if given); whoever is left is named, with the
        stacks of all its threads.
        """
        if limit is not None:
            self.allow(limit)
        while waiting := [child for child in self._children.values() if not child.ended]:
            handles = {child.pipe: child for child in waiting}
            left = self._deadline - time.monotonic()
            ready = wait(list(handles), max(0.0, left))
            if not ready:
                raise ProcessesFailed(self._report_hung())
            for pipe in ready:
                assert isinstance(pipe, Connection)
                if not pipe.closed:  # by one that was heard before
                    self._hear(handles[pipe])
        return {name: child.result for name, child in self._children.items()}

    def _hear(self, child: _Child) -> None:
        try:
            kind, content = child.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._note_death(child)
            return
        if kind == _ASK:
            assert child.serve is not None
            child.serve(content)
            return
        child.ended = True
        child.result, child.trouble = content
        child.process.join()
        if child.trouble:
            raise ProcessesFailed(f"{child.process.name} failed:\n{child.trouble}")
        self._note_exit(child)

    def _note_death(self, child: _Child) -> None:
        child.ended = True
        child.process.join()
        if not child.expendable:
            raise ProcessesFailed(f"{child.process.name} {_how(child.process.exitcode)}")

    def _note_exit(self, child: _Child) -> None:
        code = child.process.exitcode
        if code and not child.expendable:
            raise ProcessesFailed(f"{child.process.name} did its work, then {_how(code)}")

    def _report_hung(self) -> str:
        lines = [f"not over after {self._limit:g} s"]
        for name, child in self._children.items():
            if child.ended:
                lines.append(f"{name} had ended")
                continue
            lines.append(f"{name} hung; its stacks:\n{_stacks(child)}")
        return "\n".join(lines)

    def _remove(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            child.process.kill()
            child.process.join()
            child.process.close()
            child.pipe.close()


def distributed_test(
    function: Callable[..., Any], count: int, *arguments: Any, limit: float | None = None
) -> list[Any]:
    """Calls ``function(rank, directory, *arguments)`` in ``count`` processes; what they returned.

    ``directory`` is a common folder that goes with the test; ``limit`` is that of ``wait``.
    """
    with Processes() as processes:
        for rank in range(count):
            processes.start(f"rank {rank}", function, rank, processes.directory, *arguments)
        results = processes.wait(limit)
    return [results[f"rank {rank}"] for rank in range(count)]


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"died of {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _signal(process: ForkServerProcess, number: signal.Signals) -> None:
    if process.is_alive():
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _state(process: ForkServerProcess) -> str:
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _stacks(child: _Child) -> str:
    """What ``faulthandler`` writes; a paused process is woken for it."""
    for number in (signal.SIGCONT, signal.SIGUSR1):
        _signal(child.process, number)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        child.process.join(0.5)  # it writes on after the first line
        if child.stacks.exists() and (text := child.stacks.read_text()):
            return text
    return "(none: it had not begun)"
