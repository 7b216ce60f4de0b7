"""Training across hosts, as far as one machine can tell: every connection is TCP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unisono.config import load
from unisono.data import Part, Prep
from unisono.fabric.seal import make_token
from unisono.learner.site import COORDINATOR_AT, LEARNER, LEARNERS, TIMEOUT, TOKEN
from unisono.runs.directory import RunDirectory
from unisono.strategies import registry
from unisono.training.coordinate import ENDPOINT, OUTCOME

SETS = ["network.hidden=[64]", "validation.enabled=false", "checkpoint.every=1000000"]


class Across:
    """A coordinator and learners that meet over the loopback network only."""

    def __init__(self, folder: Path, prep: Path, strategy: str, learners: int, epochs: int) -> None:
        config = load(
            None,
            [*SETS, f"epochs={epochs}"],
            {"prep": str(prep), "strategy": strategy, "learners": str(learners)},
        )
        self.run = RunDirectory.create(folder / "run", config)
        self.folder = folder / "coordinator"
        self.folder.mkdir()
        self.learners: list[subprocess.Popen[bytes]] = []
        self._token = {TOKEN: make_token()}
        self._count = learners
        self.coordinator = self.start_coordinator()

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        command = ["unisono.training.coordinate", str(self.folder), "--address", "127.0.0.1"]
        command += ["--learners", str(self._count), "--timeout", "5"]
        return self._start([*command, "--metrics", str(self.run.metrics)], {})

    def start_learners(self) -> None:
        place = self.folder / ENDPOINT
        wait_for(place.is_file)
        for number in range(self._count):
            told = {
                COORDINATOR_AT: place.read_text().split()[0],
                LEARNER: str(number),
                LEARNERS: str(self._count),
                TIMEOUT: "5",
            }
            command = ["unisono.training.worker", str(self.run.path)]
            self.learners.append(self._start(command, told))

    def finish(self, killed: int) -> dict[str, Any]:
        ends = [process.wait(100) for process in [*self.learners, self.coordinator]]
        assert sorted(ends) == [-signal.SIGKILL] * killed + [0] * (len(ends) - killed)
        outcome: dict[str, Any] = json.loads((self.folder / OUTCOME).read_text())
        return outcome

    def end(self) -> None:
        for process in [*self.learners, self.coordinator]:
            process.kill()
            process.wait()

    def _start(self, command: list[str], told: dict[str, str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self._token, **told, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, "-m", *command], env=environment)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check(across: Across, lost: int) -> None:
    """Every minibatch of every epoch was settled once, whoever died meanwhile."""
    outcome = across.finish(lost)
    assert outcome["over"] and outcome["failure"] is None
    assert len(outcome["lost"]) == lost
    config = across.run.read_config()
    frames = Prep.open(Path(config.prep)).frames_of(Part.TRAIN)
    minibatches = -(-frames // config.minibatch) * config.epochs
    assert outcome["minibatches"]["settled"] == minibatches
    assert across.run.model.is_file()
    left = [e for e in across.run.read_metrics() if e["event"] == "left"]
    assert len(left) == len(across.learners) - lost
    for event in left:
        assert sum(link["bytes"] for link in event["links"]) == event["bytes_sent"] > 0
        assert all(link["seconds"] > 0 for link in event["links"])


@pytest.fixture
def stage(tmp_path: Path, prep: Path) -> Iterator[Callable[..., Across]]:
    """Runs across hosts; whatever happens, no process is left."""
    runs: list[Across] = []

    def make(strategy: str, learners: int, epochs: int) -> Across:
        runs.append(Across(tmp_path, prep, strategy, learners, epochs))
        return runs[-1]

    yield make
    for across in runs:
        across.end()


def train_and_kill_the_coordinator(across: Across) -> None:
    across.start_learners()
    wait_for(lambda: '"round"' in across.run.metrics.read_text())
    across.coordinator.kill()
    across.coordinator.wait()
    across.coordinator = across.start_coordinator()
    check(across, 0)


def test_learners_train_over_tcp_and_a_killed_coordinator_comes_back(
    stage: Callable[..., Across],
) -> None:
    train_and_kill_the_coordinator(stage("averaging", 2, 4))


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", [name for name in registry.names() if name != "solo"])
def test_every_strategy_trains_over_tcp(stage: Callable[..., Across], strategy: str) -> None:
    train_and_kill_the_coordinator(stage(strategy, 3, 4))


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server", "allreduce"])
def test_a_learner_that_is_killed_is_found_at_once(
    stage: Callable[..., Across], strategy: str
) -> None:
    """By its place, where nobody listens any more: long before its silence would tell."""
    across = stage(strategy, 3, 6)
    across.start_learners()
    wait_for(lambda: '"round"' in across.run.metrics.read_text())
    across.learners[2].kill()
    check(across, 1)
    reasons = [e["reason"] for e in across.run.read_metrics() if e["event"] == "lost"]
    assert reasons == ["its process ended"]
