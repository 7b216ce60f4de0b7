"""Training across hosts, as far as one machine can tell: every connection is TCP."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.across import Across, check
from support.intruders import rubbish
from unisono.strategies import registry


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


def train_and_kill_the_coordinator(across: Across, intruders: int = 0) -> None:
    across.start_learners()
    across.wait_until_it_says('"event":"round"')
    places = across.places()
    across.coordinator.kill()  # first: learners that have left would not come back to it
    across.coordinator.wait()
    across.coordinator = across.start_coordinator()
    for place in places if intruders else ():
        rubbish(place, intruders)
    check(across, 0)


@pytest.mark.timeout(150)
def test_learners_train_over_tcp_and_a_killed_coordinator_comes_back(
    stage: Callable[..., Across],
) -> None:
    train_and_kill_the_coordinator(stage("averaging", 2, 4), intruders=200)


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
    across.wait_until_it_says('"event":"round"')
    across.learners[2].kill()
    check(across, 1)
    reasons = [e["reason"] for e in across.run.read_metrics() if e["event"] == "lost"]
    assert reasons == ["its process ended"]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["averaging", "gossip-random"])
def test_a_run_goes_on_under_ten_thousand_connections_of_rubbish(
    stage: Callable[..., Across], strategy: str
) -> None:
    across = stage(strategy, 2, 30)
    across.start_learners()
    across.wait_until_it_says('"event":"round"')
    before = [memory(process.pid) for process in (*across.learners, across.coordinator)]
    threads = [
        threading.Thread(target=rubbish, args=(place, 10_000 // 3, n))
        for n, place in enumerate(across.places())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()
    after = [memory(process.pid) for process in (*across.learners, across.coordinator)]
    assert all(now - then < 64e6 for then, now in zip(before, after, strict=True))
    check(across, 0)


def memory(pid: int) -> int:
    """Bytes that a process occupies now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
