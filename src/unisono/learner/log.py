"""Files of JSON lines: what a learner trained, and the events of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unisono.fabric.files import AppendFile
from unisono.text import json_line

METRICS = "metrics.jsonl"
"""The events of a run, in its directory for checkpoints."""


class LearnerLog:
    """JSON lines, each written with one call, so that a kill tears at most the last one."""

    def __init__(self, path: Path) -> None:
        self._file = AppendFile(path)

    def __call__(self, line: dict[str, Any]) -> None:
        self._file.append(json_line(line))

    def close(self) -> None:
        self._file.close()


def open_metrics(path: str) -> LearnerLog:
    """A file for events, in a directory that may not be there yet."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return LearnerLog(Path(path))
