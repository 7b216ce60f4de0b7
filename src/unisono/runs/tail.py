"""Reads the metrics of a run while another process appends to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from unisono.runs.metrics import Event, parse_event


class Tail:
    """The events of a file, from its start or from its present end on.

    Attributes:
        malformed: lines that were no events; they are passed over.
        restarts: how often the file was replaced by another one, which is read from its start.
    """

    def __init__(self, path: Path, *, from_start: bool = True) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None
        if not from_start and path.is_file():
            status = path.stat()
            self._read, self._file = status.st_size, status.st_ino
        self.malformed = 0
        self.restarts = 0

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read than the last call has read."""
        try:
            return self._path.stat().st_size > self._read
        except OSError:
            return False

    def read(self, most: int | None = None) -> Iterator[Event]:
        """Those that have come since the last call; half a line is left for the next.

        Args:
            most: bytes after which to stop; None: at the end of the file.
        """
        try:
            file = self._path.open("rb")
        except OSError:  # it is not there yet, or being replaced
            return
        with file:
            self._find_place(file.fileno())
            file.seek(self._read)
            stop = None if most is None else self._read + most
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                event = parse_event(line)
                if event is None:
                    self.malformed += 1
                else:
                    yield event
                if stop is not None and self._read >= stop:
                    return

    def _find_place(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if self._file not in (None, status.st_ino) or status.st_size < self._read:
            self._read = 0
            self.restarts += 1
        self._file = status.st_ino
