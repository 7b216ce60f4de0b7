"""The coordinator's memory beyond its own death."""

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
"""How many times longer than after the last compaction a journal is when it is compacted."""
_SNAPSHOT = "snapshot"

log = logging.getLogger("unisono")


class Journal(Protocol):
    """A snapshot of the state, and operations in the order in which they were applied to it."""

    @property
    def snapshot(self) -> Any:
        """The state when the journal was compacted, as plain data; None: it never was."""

    @property
    def is_long(self) -> bool:
        """Whether it is worth while to compact it."""

    def replay(self) -> Iterator[Command]:
        """All operations since the snapshot."""

    def append(self, commands: Sequence[Command]) -> None:
        """Keeps a group of operations; when it returns they survive the coordinator.

        Raises:
            OSError: the disk does not take them; none of the group is kept.
        """

    def compact(self, snapshot: Any) -> None:
        """Keeps the state, as plain data, in place of all that has led to it."""


class MemoryJournal:
    """A journal for simulation, where the process that is killed is not this one."""

    def __init__(self, most: int | None = None) -> None:
        """``most``: operations after which it is compacted; None: it never is."""
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
    """For one process that is all of the run: nothing outlives it."""

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
    """One JSON line an operation; a group is on the disk before ``append`` returns.

    The first line of one that was compacted is the snapshot. It is written to another file, which
    takes the place of the journal when all of it is on the disk: whenever the coordinator is
    killed, one of the two is there and whole.
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
        """Writes a group, and waits for the disk; what it takes only in part is taken back."""
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
        """Writes a new one; if the disk does not take it, the old one goes on, and grows."""
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
    """Waits until the directory says which file has a name."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _snapshot_of(line: bytes) -> Any:
    """The snapshot in the first line of a journal; None: it is an operation."""
    return json.loads(line)[_SNAPSHOT] if line.startswith(f'{{"{_SNAPSHOT}":'.encode()) else None


def _line(command: Command) -> str:
    return json.dumps(COMMANDS.encode(command), separators=(",", ":")) + "\n"


def _read(line: str | bytes) -> Command:
    return COMMANDS.decode(json.loads(line))
