"""The coordinator's memory beyond its own death."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from unisono.coordinator.messages import COMMANDS, Command
from unisono.fabric.files import cut_torn_line


class Journal(Protocol):
    """Operations in the order in which they were applied."""

    def replay(self) -> Iterator[Command]:
        """All operations so far."""
        ...

    def append(self, commands: Sequence[Command]) -> None:
        """Keeps a group of operations; when it returns they survive the coordinator.

        Raises:
            OSError: the disk does not take them; none of the group is kept.
        """
        ...


class MemoryJournal:
    """A journal for simulation, where the process that is killed is not this one."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def replay(self) -> Iterator[Command]:
        """All operations so far."""
        return map(_read, self._lines)

    def append(self, commands: Sequence[Command]) -> None:
        """Keeps copies."""
        self._lines.extend(map(_line, commands))


class NoJournal:
    """For one process that is all of the run: nothing outlives it."""

    def replay(self) -> Iterator[Command]:
        """Nothing."""
        return iter(())

    def append(self, commands: Sequence[Command]) -> None:
        """Nothing."""


class FileJournal:
    """One JSON line an operation; a group is on the disk before ``append`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        cut_torn_line(self._file)  # a kill inside a write leaves half a line: never acknowledged
        self._size = os.fstat(self._file).st_size

    def replay(self) -> Iterator[Command]:
        """All operations so far."""
        with self._path.open("rb") as lines:
            yield from map(_read, lines)

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

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def _line(command: Command) -> str:
    return json.dumps(COMMANDS.encode(command), separators=(",", ":")) + "\n"


def _read(line: str | bytes) -> Command:
    return COMMANDS.decode(json.loads(line))
