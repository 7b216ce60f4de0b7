"""The coordinator's process: ``python -m unisono.launch.coordinator_main``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unisono.coordinator.journal import FileJournal
from unisono.coordinator.requests import RequestFile
from unisono.coordinator.service import Service, serve
from unisono.coordinator.snapshot import recover
from unisono.coordinator.state import State
from unisono.errors import UserError
from unisono.fabric import COORDINATOR, to_plain
from unisono.fabric.files import AppendFile
from unisono.fabric.local.forked import name_process
from unisono.fabric.local.host import Host
from unisono.fabric.network.endpoints import SocketAddress, tcp_place
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.learner.placement import COORDINATOR_SOCKET, CREDENTIALS, ENDPOINT, commit_checkpoint
from unisono.output import go_on_without_output
from unisono.runs.directory import write_atomically
from unisono.runs.metrics import format_event
from unisono.verbosity import log_to_terminal

JOURNAL = "journal.jsonl"
OUTCOME = "outcome.json"
BEGAN = "began"
REQUESTS = "requests.jsonl"


class Events:
    """Appends events to a file, one line a write, so that a kill tears at most the last."""

    def __init__(self, path: Path) -> None:
        self._file = AppendFile(path)

    def __call__(self, event: dict[str, Any]) -> None:
        """Appends one."""
        self._file.append(format_event(event))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _open_events(path: str) -> Events:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Events(Path(path))


def outcome_of(state: State) -> dict[str, Any]:
    """What the coordinator knows at the end."""
    return {
        "minibatches": asdict(state.pool.counts),
        "newly_committed": [list(r) for r in state.pool.newly_committed],
        "over": state.pool.over,
        "stopped": state.pool.stopped,
        "orderly": state.orderly,
        "rounds": state.sync_rounds.resolved - state.first_round,
        "lost": [str(address) for address in state.lost],
        "joined": state.joined,
        "learners": sorted({address.number for address in state.endpoints}),
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
    announces: bool = False,
) -> dict[str, Any]:
    """Serves one run to its end; goes on from the journal in the directory if there is one."""
    events = None if metrics is None else Events(metrics)
    node = host.node(COORDINATOR)
    node.limit_vectors(0)
    service = Service(
        node,
        open_journal(directory),
        expected=expected,
        timeout=timeout,
        fixed=fixed,
        sink=events,
        open_sink=_open_events,
        on_checkpoint=commit_checkpoint,
        waits_for_all=waits_for_all,
        announces=announces,
        began=_began(directory, node.now()),
        requests=RequestFile(directory / REQUESTS),
    )
    try:
        serve(service)
    finally:
        host.close()
        if events is not None:
            events.close()
    return outcome_of(service.state)


def open_journal(directory: Path) -> FileJournal:
    """The run's journal, begun or gone on with."""
    try:
        return FileJournal(directory / JOURNAL)
    except OSError as error:
        raise UserError(f"cannot write {directory / JOURNAL}: {error.strerror}") from None


def read_outcome(directory: Path, expected: int) -> dict[str, Any]:
    """What the coordinator knew at the end.

    One that was killed too late to be started again, or had no room to write it, has left it in
    its journal.
    """
    try:
        outcome: dict[str, Any] = json.loads((directory / OUTCOME).read_text())
        return outcome
    except (OSError, ValueError):
        return outcome_of(recover(open_journal(directory), expected))


def has_begun(directory: Path, expected: int) -> bool:
    """Whether the run of a coordinator on this machine has begun, by its journal.

    It reads a copy: whoever opens a journal repairs its end, and the coordinator may be writing.
    """
    with tempfile.TemporaryDirectory() as copy:
        with suppress(FileNotFoundError):
            shutil.copy(directory / JOURNAL, copy)
        with closing(open_journal(Path(copy))) as journal:
            return recover(journal, expected).started


def _began(directory: Path, now: float) -> float:
    """When the run began, by the clock of this machine; times go on when the coordinator does."""
    noted = directory / BEGAN
    if not noted.is_file():
        write_atomically(noted, str(now).encode())
    return float(noted.read_text())


def host_in(directory: Path, address: str) -> Host:
    """The coordinator's host; it listens on a network if there is an ``address`` for that."""
    noted = directory / ENDPOINT
    before = noted.read_text() if noted.is_file() else ""
    network = None
    if address:
        place = tcp_place(before) if before else SocketAddress(address, 0)
        network = NetworkSettings(os.environ.get(CREDENTIALS, ""), place.address, place.port)
    try:
        host = Host(directory, COORDINATOR_SOCKET, network=network)
    except OSError as error:
        raise UserError(f"the coordinator cannot listen in {directory}: {error.strerror}") from None
    if host.endpoint != before:  # else it need not be written: the disk may be full by now
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
    parser.add_argument("--announce", action="store_true", help="print who is lost")
    parser.add_argument("--address", default="", help="of this machine, for learners on others")
    options = parser.parse_args()
    name_process("coordinator")
    go_on_without_output()
    log_to_terminal()
    try:
        host = host_in(options.directory, options.address)
        outcome = coordinate(
            host,
            options.directory,
            expected=options.learners,
            timeout=options.timeout,
            metrics=options.metrics,
            fixed=options.fixed,
            announces=options.announce,
        )
    except UserError as error:
        sys.exit(f"unisono: {error}")
    try:
        write_atomically(options.directory / OUTCOME, json.dumps(outcome).encode())
    except UserError:
        if outcome["failure"] is not None:  # the rest is in the journal
            sys.exit(f"unisono: {outcome['failure']['text']}")


if __name__ == "__main__":
    main()
