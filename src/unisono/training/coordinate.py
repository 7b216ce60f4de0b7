"""The coordinator's process: ``python -m unisono.training.coordinate``."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unisono.coordinator.journal import FileJournal
from unisono.coordinator.service import Service, serve
from unisono.coordinator.state import State
from unisono.fabric import COORDINATOR
from unisono.fabric.local import Host
from unisono.learner.site import COORDINATOR_SOCKET, commit_checkpoint
from unisono.runs.metrics import format_event

JOURNAL = "journal.jsonl"
OUTCOME = "outcome.json"


class Events:
    """Appends events to a file, one line a write, so that a kill tears at most the last."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __call__(self, event: dict[str, Any]) -> None:
        """Appends one."""
        os.write(self._file, format_event(event))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def outcome_of(state: State) -> dict[str, Any]:
    """What the coordinator knows at the end."""
    return {
        "minibatches": asdict(state.pool.counts),
        "over": state.pool.over,
        "rounds": state.agreements.resolved,
        "lost": state.lost,
        "joined": state.joined,
        "failure": state.failure,
    }


def coordinate(
    host: Host,
    directory: Path,
    *,
    expected: int,
    timeout: float,
    metrics: Path | None,
    waits_for_all: bool = False,
) -> dict[str, Any]:
    """Serves one run to its end; goes on from the journal in the directory if there is one."""
    events = None if metrics is None else Events(metrics)
    service = Service(
        host.node(COORDINATOR),
        FileJournal(directory / JOURNAL),
        expected=expected,
        timeout=timeout,
        sink=events,
        on_checkpoint=commit_checkpoint,
        waits_for_all=waits_for_all,
    )
    try:
        serve(service)
    finally:
        host.close()
    return outcome_of(service.state)


def main() -> None:
    """Runs as a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--learners", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--metrics", type=Path, default=None)
    options = parser.parse_args()
    outcome = coordinate(
        Host(options.directory, COORDINATOR_SOCKET),
        options.directory,
        expected=options.learners,
        timeout=options.timeout,
        metrics=options.metrics,
    )
    (options.directory / OUTCOME).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
