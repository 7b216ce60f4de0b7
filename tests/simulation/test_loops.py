"""Users' loops on a simulated cluster: the clock, the faults, the errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.coordinator.client import Abandoned
from unisono.fabric.simulated.kernel import DeadlockError, SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.placement import SingleProcess, find_placement
from unisono.simulation import Cut, Join, Kill, KillCoordinator, Pause, run_loops

STRATEGIES: dict[str, Any] = {
    "allreduce": "allreduce",
    "static": unisono.Averaging(every=8, sharding=unisono.Sharding.STATIC),
    "dynamic": unisono.Averaging(every=8, sharding=unisono.Sharding.DYNAMIC),
}
TOTAL = 24


class Training:
    """A loop that notes what it did."""

    def __init__(self, strategy: Any, *, dropout: float = 0.0) -> None:
        self.strategy = strategy
        self.dropout = dropout
        self.steps: dict[int, int] = {}
        self.ends: dict[int, torch.Tensor] = {}

    def __call__(self) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(self.dropout), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = TensorDataset(torch.randn(96, 2, generator=torch.Generator().manual_seed(2)))
        with unisono.Learner(model, optimizer, self.strategy) as learner:
            torch.manual_seed(10 + learner.number)
            self.steps[learner.number] = 0
            for (x,) in learner.draw(data, batch_size=4):
                learner.step((model(x) - 1).square().mean())
                self.steps[learner.number] += 1
        self.ends[learner.number] = torch.cat([p.detach().view(-1) for p in model.parameters()])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("learners", [1, 2, 4])
def test_a_step_takes_its_cost(strategy: str, learners: int) -> None:
    training = Training(STRATEGIES[strategy])
    run = run_loops(training, learners=learners, cost=3.0)
    assert run.state.pool.counts.committed == TOTAL
    assert TOTAL / learners * 3.0 <= run.seconds <= TOTAL / learners * 3.0 + 3.0
    assert sum(training.steps.values()) == TOTAL


def test_the_slow_draw_less_or_are_waited_for() -> None:
    static, dynamic = Training(STRATEGIES["static"]), Training(STRATEGIES["dynamic"])
    waiting = run_loops(static, learners=2, slowness={1: 5.0})
    flowing = run_loops(dynamic, learners=2, slowness={1: 5.0})
    assert static.steps == {0: 12, 1: 12}
    assert dynamic.steps[0] >= 18
    assert waiting.seconds >= 60 > 40 > flowing.seconds


def test_messages_take_their_time() -> None:
    quick = run_loops(Training("allreduce"), learners=2)
    slow = run_loops(Training("allreduce"), learners=2, network=SimulatedNetwork(latency=0.5))
    # Each of 12 rounds is two messages one after the other.
    assert slow.seconds - quick.seconds > 12 * 2 * 0.49


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_seed_replays(strategy: str) -> None:
    def run(seed: int) -> tuple[float, list[torch.Tensor], dict[int, int]]:
        training = Training(STRATEGIES[strategy], dropout=0.3)
        torch.manual_seed(77)
        seconds = run_loops(
            training, learners=3, scheduler=SeededScheduler(seed), faults=[Kill(4.4, 2)]
        ).seconds
        return seconds, [training.ends[n] for n in sorted(training.ends)], training.steps

    one, two, other = run(3), run(3), run(4)
    assert one[0] == two[0] and one[2] == two[2]
    assert all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))
    assert one[0] != other[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "faults",
    [
        [Kill(3.2, 0)],
        [Pause(2.5, 1, 3.0)],
        [Pause(2.5, 1, 12.0)],
        [Cut(2.5, 2, 3.0)],
        [Cut(2.5, 2, 14.0)],
        [KillCoordinator(3.1), KillCoordinator(6.3, 0.2)],
        [Join(3.0, 3)],
        [Kill(2.1, 1), Join(4.0, 3), KillCoordinator(5.0)],
    ],
    ids=["kill", "nap", "sleep", "flicker", "partition", "coordinator", "join", "all"],
)
def test_faults(strategy: str, faults: list[Any]) -> None:
    training = Training(STRATEGIES[strategy])
    run = run_loops(training, learners=3, faults=faults, check=False)
    # One that comes to itself when all is over finds no coordinator any more.
    assert all(type(error).__name__ == "CoordinatorLost" for error in run.errors.values())
    counts = run.state.pool.counts
    assert run.state.pool.over
    assert counts.committed == TOTAL == counts.leased - counts.returned
    assert all(end.isfinite().all() for end in training.ends.values())
    if any(isinstance(fault, Join) for fault in faults):
        assert run.state.joined == 4


@pytest.mark.parametrize("when", [0.0, 0.3, 0.99, 1.0, 1.01, 2.5, 6.02])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_learner_can_be_killed_at_any_time(strategy: str, when: float) -> None:
    """Also before it has joined, inside a consensus, and with a lock in its hands."""

    class Looking(Training):
        def __call__(self) -> None:
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            data = TensorDataset(torch.ones(96, 2))
            with unisono.Learner(model, optimizer, self.strategy) as learner:
                for (x,) in learner.draw(data, batch_size=4):
                    learner.backward(model(x).mean())
                    optimizer.step()
                    assert learner._session is not None
                    with learner.consensus():
                        learner._session.fabric.sleep(0.5)
                    optimizer.zero_grad()

    for seed in range(3):
        run = run_loops(
            Looking(STRATEGIES[strategy]),
            learners=3,
            faults=[Kill(when, 1)],
            scheduler=SeededScheduler(seed, switching=0.5),
        )
        assert run.state.pool.over
        assert run.state.pool.counts.committed == TOTAL


def test_errors_come_with_the_cause_first() -> None:
    class BugError(Exception):
        pass

    def loop() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = TensorDataset(torch.ones(96, 2))
        with unisono.Learner(model, optimizer, "allreduce") as learner:
            for step, (x,) in enumerate(learner.draw(data, batch_size=4)):
                if learner.number == 2 and step == 3:
                    raise BugError
                learner.step(model(x).mean())

    with pytest.raises(BugError):
        run_loops(loop, learners=3)
    run = run_loops(loop, learners=3, check=False)
    kinds = {number: type(error) for number, error in run.errors.items()}
    assert kinds == {0: Abandoned, 1: Abandoned, 2: BugError}
    assert next(iter(run.errors)) == 2


def test_a_loop_that_hangs_is_stuck() -> None:
    def loop() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with unisono.Learner(model, optimizer, "allreduce") as learner:
            for (x,) in learner.draw(TensorDataset(torch.ones(96, 2)), batch_size=4):
                learner.step(model(x).mean())
                assert learner._session is not None
                while learner.number == 1:
                    learner._session.fabric.sleep(1.0)

    with pytest.raises(DeadlockError, match="not over after 500 s"):
        run_loops(loop, learners=2, limit=500.0)


def test_learners_know_where_they_are() -> None:
    numbers: list[tuple[int, int]] = []
    events: list[Any] = []

    def loop() -> None:
        placement = find_placement()
        numbers.append((placement.number, placement.learners))
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with unisono.Learner(model, optimizer) as learner:
            assert learner.strategy.name == "averaging"
            for (x,) in learner.draw(TensorDataset(torch.ones(96, 2)), batch_size=4):
                learner.step(model(x).mean())
            learner.event("mine", note=learner.number)

    run = run_loops(loop, learners=3)
    assert numbers == [(0, 3), (1, 3), (2, 3)]
    assert isinstance(find_placement(), SingleProcess)
    events = [event for event in run.events if event["event"] == "mine"]
    assert sorted(event["learner"] for event in events) == [0, 1, 2]
    assert all(event["note"] == event["learner"] for event in events)
    train = [event for event in run.events if event["event"] == "train"]
    assert train and all(0 < event["rate"] <= 4.1 for event in train)
