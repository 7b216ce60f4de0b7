"""The coordinator's process: ``python -m unisono.launch.coordinator_main``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unisono.coordinator.journal import FileJournal
from unisono.coordinator.service import Service, serve
from unisono.coordinator.state import State
from unisono.errors import UserError
from unisono.fabric import COORDINATOR, to_plain
from unisono.fabric.local.host import Host
from unisono.fabric.network.endpoints import SocketAddress, tcp_place
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.learner.placement import COORDINATOR_SOCKET, CREDENTIALS, commit_checkpoint
from unisono.runs.directory import write_atomically
from unisono.runs.metrics import format_event

JOURNAL = "journal.jsonl"
OUTCOME = "outcome.json"
BEGAN = "began"
ENDPOINT = "endpoint"
"""Where the coordinator is reached; its next incarnation takes the same place."""


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
        "rounds": state.sync_rounds.resolved,
        "lost": [str(address) for address in state.lost],
        "joined": state.joined,
        "failure": None if state.failure is None else to_plain(state.failure),
    }


def coordinate(
    host: Host,
    directory: Path,
    *,
    expected: int,
    timeout: float,
    metrics: Path | None,
    fixed: bool = False,
    waits_for_all: bool = False,
) -> dict[str, Any]:
    """Serves one run to its end; goes on from the journal in the directory if there is one."""
    events = None if metrics is None else Events(metrics)
    node = host.node(COORDINATOR)
    node.limit_vectors(0)
    service = Service(
        node,
        FileJournal(directory / JOURNAL),
        expected=expected,
        timeout=timeout,
        fixed=fixed,
        sink=events,
        on_checkpoint=commit_checkpoint,
        waits_for_all=waits_for_all,
        began=_began(directory, node.now()),
    )
    try:
        serve(service)
    finally:
        host.close()
    return outcome_of(service.state)


def _began(directory: Path, now: float) -> float:
    """When the run began, by the clock of this machine; times go on when the coordinator does."""
    noted = directory / BEGAN
    if not noted.is_file():
        write_atomically(noted, str(now).encode())
    return float(noted.read_text())


def host_in(directory: Path, address: str) -> Host:
    """The coordinator's host; it listens on a network if there is an ``address`` for that."""
    noted = directory / ENDPOINT
    if not address:
        host = Host(directory, COORDINATOR_SOCKET)
        write_atomically(noted, host.endpoint.encode())
        return host
    place = tcp_place(noted.read_text()) if noted.is_file() else SocketAddress(address, 0)
    network = NetworkSettings(os.environ.get(CREDENTIALS, ""), place.address, place.port)
    host = Host(directory, COORDINATOR_SOCKET, network=network)
    write_atomically(noted, host.endpoint.encode())
    return host


def main() -> None:
    """Runs as a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--learners", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--metrics", type=Path, default=None)
    parser.add_argument("--fixed", action="store_true", help="the loss of one ends the run")
    parser.add_argument("--address", default="", help="of this machine, for learners on others")
    options = parser.parse_args()
    try:
        host = host_in(options.directory, options.address)
    except UserError as error:
        sys.exit(f"unisono: {error}")
    outcome = coordinate(
        host,
        options.directory,
        expected=options.learners,
        timeout=options.timeout,
        metrics=options.metrics,
        fixed=options.fixed,
    )
    (options.directory / OUTCOME).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
