"""The coordinator's memory beyond its own death."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

Operation = dict[str, Any]


class Journal(Protocol):
    """Operations in the order in which they were applied."""

    def replay(self) -> Iterator[Operation]:
        """All operations so far."""
        ...

    def append(self, operations: Sequence[Operation]) -> None:
        """Keeps a group of operations; when it returns they survive the coordinator."""
        ...


class MemoryJournal:
    """A journal for simulation, where the process that is killed is not this one."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def replay(self) -> Iterator[Operation]:
        """All operations so far."""
        return (json.loads(line) for line in self._lines)

    def append(self, operations: Sequence[Operation]) -> None:
        """Keeps copies."""
        self._lines.extend(json.dumps(operation) for operation in operations)


class NoJournal:
    """For one process that is all of the run: nothing outlives it."""

    def replay(self) -> Iterator[Operation]:
        """Nothing."""
        return iter(())

    def append(self, operations: Sequence[Operation]) -> None:
        """Nothing."""


class FileJournal:
    """One JSON line an operation; a group is on the disk before ``append`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._cut_torn_end()

    def replay(self) -> Iterator[Operation]:
        """All operations so far."""
        with self._path.open("rb") as lines:
            for line in lines:
                yield json.loads(line)

    def append(self, operations: Sequence[Operation]) -> None:
        """Writes a group with one call, and waits for the disk."""
        text = "".join(json.dumps(op, separators=(",", ":")) + "\n" for op in operations)
        os.write(self._file, text.encode())
        os.fdatasync(self._file)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def _cut_torn_end(self) -> None:
        """A kill inside a write leaves half a line, which was never acknowledged."""
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.ftruncate(self._file, whole)
