"""Runs whose coordinator and learners meet over TCP only, for tests that harm them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.config import load
from unisono.data import Part, Prep
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.endpoints import SocketAddress
from unisono.launch.coordinator_main import JOURNAL, OUTCOME
from unisono.learner.placement import (
    COORDINATOR_AT,
    CREDENTIALS,
    ENDPOINT,
    LEARNER,
    LEARNERS,
    TIMEOUT,
)
from unisono.runs.directory import RunDirectory

SETS = ["network.hidden=[64]", "validation.enabled=false", "checkpoint.every=1000000"]


@dataclass(frozen=True)
class Home:
    """Where a process lives: its address, and the words before its command."""

    address: str = "127.0.0.1"
    inside: tuple[str, ...] = ()


class Across:
    """A coordinator and learners that meet over a network only; by default the loopback's.

    ``homes`` are the coordinator's and each learner's.
    """

    def __init__(
        self,
        folder: Path,
        prep: Path,
        strategy: str,
        learners: int,
        epochs: int,
        *,
        homes: Sequence[Home] = (),
        timeout: float = 5.0,
        sets: Sequence[str] = (),
    ) -> None:
        config = load(
            None,
            [*SETS, f"epochs={epochs}", *sets],
            {"prep": str(prep), "strategy.name": strategy, "learners": str(learners)},
        )
        self._homes = homes or [Home()] * (learners + 1)
        self._timeout = timeout
        self.run = RunDirectory.create(folder / "run", config)
        self.folder = folder / "coordinator"
        self.folder.mkdir()
        self.learners: list[subprocess.Popen[bytes]] = []
        self._credentials = {CREDENTIALS: make_credentials()}
        self._count = learners
        self.coordinator = self.start_coordinator()

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        home = self._homes[0]
        command = ["unisono.launch.coordinator_main", str(self.folder), "--address", home.address]
        command += ["--learners", str(self._count), "--timeout", str(self._timeout)]
        return self._start(home, [*command, "--metrics", str(self.run.metrics)], {})

    def start_learners(self) -> None:
        for number in range(self._count):
            self.start_learner(number)

    def start_learner(self, number: int) -> None:
        place = self.folder / ENDPOINT
        wait_for(place.is_file)
        told = {
            COORDINATOR_AT: place.read_text().split()[0],
            LEARNER: str(number),
            LEARNERS: str(self._count),
            TIMEOUT: str(self._timeout),
        }
        command = ["unisono.training.worker", str(self.run.path)]
        self.learners.append(self._start(self._homes[number + 1], command, told))

    def finish(self, killed: int) -> dict[str, Any]:
        ends = [process.wait(300) for process in [*self.learners, self.coordinator]]
        assert sorted(ends) == [-signal.SIGKILL] * killed + [0] * (len(ends) - killed)
        outcome: dict[str, Any] = json.loads((self.folder / OUTCOME).read_text())
        return outcome

    def end(self) -> None:
        for process in [*self.learners, self.coordinator]:
            process.kill()
            process.wait()

    def wait_until_it_says(self, text: str) -> None:
        """Waits for a word in the metrics."""
        metrics = self.run.metrics
        wait_for(lambda: metrics.exists() and text in metrics.read_text())

    def places(self) -> list[SocketAddress]:
        """All ports of the run."""
        noted = [self.folder / ENDPOINT, self.folder / JOURNAL]
        found = {p for path in noted for p in re.findall(r"tcp:[\d.]+:\d+", path.read_text())}
        return [SocketAddress.parse(text) for text in sorted(found)]

    def _start(
        self, home: Home, command: list[str], told: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self._credentials, **told, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*home.inside, sys.executable, "-m", *command], env=environment)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check(across: Across, lost: int) -> None:
    """Every minibatch of every epoch was committed once, whoever died meanwhile."""
    outcome = across.finish(lost)
    assert outcome["over"] and outcome["failure"] is None
    assert len(outcome["lost"]) == lost
    config = across.run.read_config()
    frames = Prep.open(Path(config.prep)).frames_of(Part.TRAIN)
    minibatches = -(-frames // config.minibatch) * config.epochs
    assert outcome["minibatches"]["committed"] == minibatches
    assert across.run.model.is_file()
    left = [e for e in across.run.read_metrics() if e["event"] == "left"]
    assert len(left) == len(across.learners) - lost
    for event in left:
        assert sum(link["bytes"] for link in event["links"]) == event["bytes_sent"] > 0
        assert any(link["seconds"] > 0 for link in event["links"])  # a server's shard may be here
