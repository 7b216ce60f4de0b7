"""Requests of people to a running run, and the file in which the coordinator finds them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol


class Action(Enum):
    """What can be requested."""

    ADD = "add"
    """Add a learner; the launcher has started it, and the coordinator writes the event."""
    REMOVE = "remove"
    """A learner is to leave before the end."""
    CHECKPOINT = "checkpoint"
    STOP = "stop"
    """The run ends after its next checkpoint."""


@dataclass(frozen=True)
class Requested:
    """A request; those of a run are numbered from 1."""

    number: int
    action: Action
    learner: int | None = None


class Requests(Protocol):
    """Where the coordinator finds requests."""

    def since(self, count: int) -> list[Requested]:
        """All but the first so many requests."""


class RequestFile:
    """Requests in a file, a line each, to which one process appends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._requests: list[Requested] = []

    def append(self, action: Action, learner: int | None = None) -> None:
        """Adds a request.

        Raises:
            OSError: it cannot be written, for example on a full disk; nothing was added.
        """
        line = json.dumps({"action": action.value, "learner": learner}).encode() + b"\n"
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def since(self, count: int) -> list[Requested]:
        """All but the first so many; the file is read only if it has grown."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size != self._size:
            whole, _, _ = self._path.read_bytes().rpartition(b"\n")
            lines = [json.loads(line) for line in whole.splitlines()]
            self._requests = [
                Requested(number, Action(line["action"]), line["learner"])
                for number, line in enumerate(lines, 1)
            ]
            self._size = size
        return self._requests[count:]
