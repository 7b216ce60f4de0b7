"""What the threads of another process are doing: ``faulthandler``, by a signal.

It works for a process whose Python code does not get on: the handler is C, and takes no lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

_SIGNAL = signal.SIGUSR1
_QUIET_S = 0.1
"""Seconds without another byte after which a dump is whole."""
_POLL_S = 0.01

_files: list[BinaryIO] = []
"""They stay open as long as this process lives."""


def allow_stack_dumps(path: Path) -> None:
    """From now on others can have the stacks of this process written to a file.

    The file is there when the signal can be taken; before that it would end the process.
    """
    hidden = path.with_name(f".{path.name}")
    file = hidden.open("ab", buffering=0)
    _files.append(file)
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    hidden.rename(path)


def take_stack_dump(process: int, path: Path, patience: float) -> str:
    """The stacks of all threads of a process that allows it, the newest call first.

    Returns:
        Nothing if the process wrote none in ``patience`` seconds: it is stopped, or starts.
    """
    if not path.exists():
        return ""
    before = size = path.stat().st_size
    os.kill(process, _SIGNAL)
    deadline = time.monotonic() + patience
    quiet_since = time.monotonic()
    while time.monotonic() < deadline:
        grown = path.stat().st_size
        if grown != size:
            size, quiet_since = grown, time.monotonic()
        elif size > before and time.monotonic() - quiet_since > _QUIET_S:
            break
        time.sleep(_POLL_S)
    with path.open("rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")
