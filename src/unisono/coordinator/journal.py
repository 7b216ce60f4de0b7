"""The journal of operations, from which a restarted coordinator recovers its state."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from unisono.coordinator.messages import COMMANDS, Command
from unisono.fabric.files import cut_torn_line

LEAST_BYTES = 2**20
"""A journal shorter than this is not compacted."""
GROWTH = 4
"""A journal is compacted when it is so many times longer than after the last compaction."""
_SNAPSHOT = "snapshot"

log = logging.getLogger("unisono")


class Journal(Protocol):
    """A snapshot of the state, and operations in the order in which they were applied to it."""

    @property
    def snapshot(self) -> Any:
        """The state at the last compaction, as plain data; None: there was none."""

    @property
    def is_long(self) -> bool:
        """Whether it is long enough to be compacted."""

    def replay(self) -> Iterator[Command]:
        """All operations since the snapshot."""

    def append(self, commands: Sequence[Command]) -> None:
        """Writes a group of operations; when it returns they are durable.

        Raises:
            OSError: the disk is full or fails; none of the group is kept.
        """

    def compact(self, snapshot: Any) -> None:
        """Replaces all operations by the state that they led to, as plain data."""


class MemoryJournal:
    """A journal in memory, for simulation."""

    def __init__(self, most: int | None = None) -> None:
        """``most``: operations after which it is compacted; None: never."""
        self._most = most
        self._snapshot = ""
        self._lines: list[str] = []

    @property
    def snapshot(self) -> Any:
        return json.loads(self._snapshot) if self._snapshot else None

    @property
    def is_long(self) -> bool:
        return self._most is not None and len(self._lines) >= self._most

    def replay(self) -> Iterator[Command]:
        return map(_read, self._lines)

    def append(self, commands: Sequence[Command]) -> None:
        self._lines.extend(map(_line, commands))

    def compact(self, snapshot: Any) -> None:
        self._snapshot, self._lines = json.dumps(snapshot), []


class NoJournal:
    """No journal, for a run of one process: nothing outlives it."""

    snapshot: Any = None
    is_long = False

    def replay(self) -> Iterator[Command]:
        """Nothing."""
        return iter(())

    def append(self, commands: Sequence[Command]) -> None:
        """Nothing."""

    def compact(self, snapshot: Any) -> None:
        """Nothing."""


class FileJournal:
    """One JSON line per operation, on disk before ``append`` returns.

    The first line of a compacted journal is the snapshot. It is written to a new file, which
    replaces the journal once it is on disk, so that a coordinator can be killed at any time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f"{path.name}.new")
        self._draft.unlink(missing_ok=True)
        self._open()
        cut_torn_line(self._file)  # a kill inside a write leaves half a line: never acknowledged
        self._size = os.fstat(self._file).st_size
        self._limit = max(LEAST_BYTES, GROWTH * self._snapshot_bytes())

    @property
    def snapshot(self) -> Any:
        with self._path.open("rb") as lines:
            first = lines.readline()
        return _snapshot_of(first)

    @property
    def is_long(self) -> bool:
        return self._size > self._limit

    def replay(self) -> Iterator[Command]:
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines):
                if number > 0 or _snapshot_of(line) is None:
                    yield _read(line)

    def append(self, commands: Sequence[Command]) -> None:
        """Writes a group and waits for the disk; a partial write is undone."""
        rest = memoryview("".join(map(_line, commands)).encode())
        size = self._size + len(rest)
        if os.fstat(self._file).st_size != self._size:
            os.ftruncate(self._file, self._size)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size = size

    def compact(self, snapshot: Any) -> None:
        """Writes a new file; if that fails, the old one is kept, and grows."""
        data = (json.dumps({_SNAPSHOT: snapshot}, separators=(",", ":")) + "\n").encode()
        self._limit = max(LEAST_BYTES, GROWTH * len(data), GROWTH * self._size)
        try:
            with self._draft.open("wb") as draft:
                draft.write(data)
                draft.flush()
                os.fsync(draft.fileno())
            self._draft.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                self._draft.unlink(missing_ok=True)
            log.warning("unisono: the coordinator's journal cannot be compacted (%s)", error)
            return
        _sync_directory(self._path.parent)
        os.close(self._file)
        self._open()
        self._size = len(data)
        self._limit = max(LEAST_BYTES, GROWTH * len(data))

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)

    def _snapshot_bytes(self) -> int:
        with self._path.open("rb") as lines:
            first = lines.readline()
        return len(first) if _snapshot_of(first) is not None else 0


def _sync_directory(path: Path) -> None:
    """Waits until the renaming is on disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _snapshot_of(line: bytes) -> Any:
    """The snapshot in the first line of a journal, or None if that is an operation."""
    return json.loads(line)[_SNAPSHOT] if line.startswith(f'{{"{_SNAPSHOT}":'.encode()) else None


def _line(command: Command) -> str:
    return json.dumps(COMMANDS.encode(command), separators=(",", ":")) + "\n"


def _read(line: str | bytes) -> Command:
    return COMMANDS.decode(json.loads(line))
