"""A learner's own log: what it trained, and which sync rounds it saw completed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class LearnerLog:
    """JSON lines, each written with one call, so that a kill tears at most the last one."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)

    def __call__(self, line: dict[str, Any]) -> None:
        """Appends a line."""
        os.write(self._file, (json.dumps(line, separators=(",", ":")) + "\n").encode())

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
