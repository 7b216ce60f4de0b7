"""What people ask of a run, with every strategy: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unisono
from support.loops import BATCH, SHARING, dataset, loss_of, network, sgd, threads
from unisono.coordinator.requests import Action, Requested
from unisono.learner.checkpoint_files import checkpoints

EPOCHS, TOTAL = 40, 40 * 13
STRATEGIES: dict[str, Any] = {
    **SHARING,
    "gossip-fixed": unisono.GossipFixed(every=2 * BATCH),
    "adpsgd": unisono.ADPSGD(every=2 * BATCH),
    "server": unisono.Server(push_every=2),
    "averaged-server": unisono.AveragedServer(push_every=2),
    "elastic": unisono.Elastic(push_every=2),
}


class Asked:
    """Requests that are made by the learners of a test themselves."""

    def __init__(self) -> None:
        self.requests: list[Requested] = []

    def ask(self, action: Action, learner: int | None = None) -> None:
        self.requests.append(Requested(len(self.requests) + 1, action, learner))

    def since(self, count: int) -> list[Requested]:
        return self.requests[count:]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("leaver", [0, pytest.param(1, marks=pytest.mark.long)])
def test_one_that_is_removed_leaves_the_rest_to_the_others(strategy: str, leaver: int) -> None:
    asked = Asked()
    steps: dict[int, int] = {}
    leaders: list[int] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), STRATEGIES[strategy], quiet=True) as learner:
            steps[learner.number] = 0
            for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                learner.step(loss_of(model, batch))
                steps[learner.number] += 1
                if learner.number == leaver and steps[leaver] == 4:
                    asked.ask(Action.REMOVE, leaver)
            if learner.is_leader:
                leaders.append(learner.number)

    ran = threads(loop, 3, requests=asked)
    assert ran.state.pool.over and not ran.state.lost
    assert ran.counts.committed == TOTAL
    assert ran.counts.leased == TOTAL + ran.counts.returned
    assert ran.state.removed == {leaver}
    assert len(leaders) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stop_ends_all_loops_after_a_checkpoint(strategy: str, tmp_path: Path) -> None:
    """The checkpoint and what is trained after it are the whole run."""
    asked = Asked()
    leaders: list[int] = []
    seen: list[float] = []

    def loop(*, resume: bool = False) -> None:
        model = network()
        with unisono.Learner(
            model,
            sgd(model),
            STRATEGIES[strategy],
            checkpoints=tmp_path,
            checkpoint_every=10**6,
            resume=resume,
            quiet=True,
        ) as learner:
            batches = learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH)
            for place, batch in enumerate(batches):
                learner.step(loss_of(model, batch))
                if place == 4 and learner.number == 1 and not resume:
                    asked.ask(Action.STOP)
            seen.append(learner.progress)
            if learner.is_leader:
                leaders.append(learner.number)

    ran = threads(loop, 3, requests=asked)
    assert ran.state.pool.over and ran.state.pool.stopped and not ran.state.lost
    counts = ran.counts
    assert counts.leased == counts.committed + counts.skipped + counts.returned
    assert 0 < counts.committed < TOTAL
    assert max(seen) < 1 and len(leaders) == 1
    (kept,) = checkpoints(tmp_path)
    ranges = json.loads((kept / "pool.json").read_text())["committed"]
    in_checkpoint = sum(stop - start for start, stop in ranges)
    assert 0 < in_checkpoint <= counts.committed
    resumed = threads(lambda: loop(resume=True), 3)
    assert resumed.counts.committed == TOTAL - in_checkpoint


def with_checkpoints(strategy: str, folder: Path, ask: Callable[[], None]) -> Callable[[], None]:
    """A loop that writes checkpoints when it is asked to; learner 1 asks after some steps."""

    def loop() -> None:
        model = network()
        with unisono.Learner(
            model,
            sgd(model),
            STRATEGIES[strategy],
            checkpoints=folder,
            checkpoint_every=10**6,
            quiet=True,
        ) as learner:
            for place, batch in enumerate(learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH)):
                learner.step(loss_of(model, batch))
                if place == 4 and learner.number == 1:
                    ask()

    return loop


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_that_is_removed_writes_its_part_of_a_checkpoint(strategy: str, tmp_path: Path) -> None:
    asked = Asked()

    def ask() -> None:
        asked.ask(Action.STOP)
        asked.ask(Action.REMOVE, 2)

    ran = threads(with_checkpoints(strategy, tmp_path, ask), 3, requests=asked)
    assert ran.state.pool.over and ran.state.pool.stopped and not ran.state.lost
    assert len(checkpoints(tmp_path)) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_checkpoint_is_written_when_it_is_asked_for(strategy: str, tmp_path: Path) -> None:
    asked = Asked()
    told: list[dict[str, object]] = []

    loop = with_checkpoints(strategy, tmp_path, lambda: asked.ask(Action.CHECKPOINT))
    ran = threads(loop, 3, requests=asked, sink=told.append)
    assert ran.counts.committed == TOTAL
    (kept,) = checkpoints(tmp_path)
    ranges = json.loads((kept / "pool.json").read_text())["committed"]
    in_checkpoint = sum(stop - start for start, stop in ranges)
    assert [e["minibatches"] for e in told if e["event"] == "checkpoint"] == [in_checkpoint]
    assert [e["action"] for e in told if e["event"] == "requested"] == ["checkpoint"]
    assert 0 < in_checkpoint <= TOTAL
