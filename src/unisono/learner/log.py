"""A learner's own log: what it trained, and which sync rounds it saw completed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unisono.files import AppendFile


class LearnerLog:
    """JSON lines, each written with one call, so that a kill tears at most the last one."""

    def __init__(self, path: Path) -> None:
        self._file = AppendFile(path)

    def __call__(self, line: dict[str, Any]) -> None:
        """Appends a line."""
        self._file.append((json.dumps(line, separators=(",", ":")) + "\n").encode())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
