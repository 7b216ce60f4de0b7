"""Files that are appended to while a run lives, on disks that may be full for a while."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from unisono.errors import UserError

MOST_WAITING = 4 * 2**20
"""Bytes that wait in memory for a disk that cannot be written; what comes after is dropped."""
_BLOCK = 65536
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RETRY_S = 0.5

log = logging.getLogger("unisono")


class AppendFile:
    """Appends lines, each with one call, so that a kill tears at most the last one.

    While the disk refuses them they wait in memory, and are written with the first line that it
    takes again. That a file cannot be written is said once. Several threads may append.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._dropped = 0
        self._warned = False
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o644)
            cut_torn_line(self._file)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None

    def append(self, line: bytes) -> None:
        with self._lock:
            if len(self._waiting) + len(line) <= MOST_WAITING:
                self._waiting += line
            else:
                self._dropped += 1
            self._write()

    def close(self) -> None:
        """Tries once more, and closes the file."""
        with self._lock:
            self._write()
        lost = self._dropped + self._waiting.count(b"\n")
        if lost:
            log.warning(
                "unisono: %d lines of %s were lost: it could not be written", lost, self._path
            )
        os.close(self._file)

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
        except OSError as error:
            if not self._warned:
                self._warned = True
                text = "unisono: %s cannot be written (%s): lines are kept in memory until it can"
                log.warning(text, self._path, error.strerror)


def retry_while_full(write: Callable[[], None], path: Path, seconds: float) -> None:
    """Calls ``write`` again and again while the disk of ``path`` is full, for so many seconds.

    Raises:
        OSError: it is full all the time, or fails in another way, which waiting does not mend.
    """
    deadline: float | None = None
    while True:
        try:
            write()
        except OSError as error:
            now = time.monotonic()
            if deadline is None and error.errno in _FULL and seconds > 0:
                deadline = now + seconds
                text = "unisono: %s cannot be written (%s): trying again for %.0f s"
                log.warning(text, path, error.strerror, seconds)
            if deadline is None or error.errno not in _FULL or now >= deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            if deadline is not None:
                log.warning("unisono: %s is written now", path)
            return


def cut_torn_line(file: int) -> None:
    """Makes an open file end with a whole line."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)


def take_lock(descriptor: int) -> bool:
    """Locks an open file until it is closed, or this process ends; False: somebody else has.

    Where the file system knows no locks, nobody is kept out.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("no lock can be taken: %s", error)
    return True


def file_age(path: Path) -> float | None:
    """Seconds since a file was last written, by the machine's clock; None: it is not there."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None
