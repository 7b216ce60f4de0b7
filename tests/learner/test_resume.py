"""A run that was stopped and goes on ends with the bytes of one that was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from support.loops import BATCH, Ran, alone, dataset, flat, loss_of, network, simulated, threads
from unisono.coordinator.client import Abandoned
from unisono.errors import UserError
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.checkpoint_files import checkpoints, read_pool
from unisono.simulation import Kill, KillCoordinator

PER_EPOCH, EPOCHS = 12, 3
STATIC = unisono.Sharding.STATIC
EVEN = 96
"""Examples: 12 minibatches an epoch, which 1, 2 and 3 learners divide evenly."""


class StopError(Exception):
    """What a user's loop may raise."""


@dataclass
class Training:
    """A loop with dropout, batch norm, momentum and a scheduler."""

    strategy: Any
    directory: Path | None = None
    every: int = 0
    resume: bool = False
    stop_after: int | None = None
    """Steps until one learner raises."""
    leave_after: int | None = None
    """Steps of a learner until it breaks out of the loop."""
    keep: int = 2
    examples: int = EVEN
    ends: dict[int, torch.Tensor] = field(default_factory=dict)
    moments: dict[int, torch.Tensor] = field(default_factory=dict)
    statistics: dict[int, torch.Tensor] = field(default_factory=dict)
    epochs: int = EPOCHS
    steps: dict[int, int] = field(default_factory=dict)
    is_leader: list[int] = field(default_factory=list)

    def __call__(self) -> None:
        model = network(dropout=0.2, norm=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 9, 14], 0.7)
        with unisono.Learner(
            model,
            optimizer,
            self.strategy,
            checkpoints=self.directory,
            checkpoint_every=self.every,
            keep=self.keep,
            resume=self.resume,
            extra_state={"scheduler": scheduler},
        ) as learner:
            torch.manual_seed(100 + learner.number)
            dynamic = learner.draw(dataset(self.examples), self.epochs, BATCH)
            for taken, batch in enumerate(dynamic, start=1):
                learner.step(loss_of(model, batch))
                scheduler.step()
                self.steps[learner.number] = taken
                if taken == self.stop_after and learner.number == 0:
                    raise StopError("enough")
                if taken == self.leave_after:
                    break
            if learner.is_leader:
                self.is_leader.append(learner.number)
            if self.leave_after is None:
                with learner.consensus():
                    self.ends[learner.number] = flat(model)
                state = optimizer.state[next(model.parameters())]
                self.moments[learner.number] = state["exp_avg"].clone()
                self.statistics[learner.number] = model[2].running_mean.clone()


STRATEGIES: dict[str, Any] = {
    "allreduce": "allreduce",
    "plain": unisono.Averaging(every=2 * BATCH, sharding=STATIC),
    "delay-by-one": "delay-by-one",
    "block-momentum": unisono.Averaging(
        every=2 * BATCH, sharding=STATIC, outer=unisono.BlockMomentum()
    ),
    "slowmo": unisono.Averaging(every=2 * BATCH, sharding=STATIC, outer=unisono.SlowMo()),
    "nesterov": unisono.Averaging(every=2 * BATCH, sharding=STATIC, outer=unisono.Nesterov()),
}
CASES = [("solo", 1), *((name, n) for name in STRATEGIES for n in (1, 2, 3))]
FEW_BITS: dict[str, Any] = {
    "int8": unisono.Averaging(every=2 * BATCH, sharding=STATIC, precision=unisono.Precision.INT8),
    "int4-nesterov": unisono.Averaging(
        every=2 * BATCH, sharding=STATIC, outer=unisono.Nesterov(), precision=unisono.Precision.INT4
    ),
    "int4-allreduce": unisono.AllReduce(precision=unisono.Precision.INT4),
    "1bit-allreduce": unisono.AllReduce(precision=unisono.Precision.ONE_BIT),
    "int8-delay-by-one": unisono.DelayByOne(precision=unisono.Precision.INT8),
}
STRATEGIES |= FEW_BITS
CASES += [(name, n) for name in FEW_BITS for n in (2, 3)]
EVERY_STEP = {"solo", "allreduce", "delay-by-one", "int8-delay-by-one"}
EVERY_STEP |= {"int4-allreduce", "1bit-allreduce"}


def run(training: Training, learners: int, *, check: bool = True, **how: Any) -> Ran:
    return simulated(training, learners, check=check, **how)


def uninterrupted(name: str, learners: int) -> Training:
    training = Training(STRATEGIES.get(name, name))
    run(training, learners)
    return training


def assert_same(a: Training, b: Training) -> None:
    assert a.ends.keys() == b.ends.keys() and a.ends
    for number in a.ends:
        assert torch.equal(a.ends[number], b.ends[number])
        assert torch.equal(a.moments[number], b.moments[number])
        assert torch.equal(a.statistics[number], b.statistics[number])


@pytest.mark.parametrize(("name", "learners"), CASES)
@pytest.mark.parametrize("where", ["in mid-epoch", "at an epoch's end"])
def test_goes_on_to_the_same_bytes(name: str, learners: int, where: str, tmp_path: Path) -> None:
    whole = uninterrupted(name, learners)
    every = 6 * BATCH if where == "in mid-epoch" else 0
    strategy = STRATEGIES.get(name, name)
    # The exception comes in the second epoch: what was trained after the checkpoint is lost.
    stop = (PER_EPOCH + 8) // learners + 1
    first = Training(strategy, tmp_path, every, stop_after=stop)
    ran = run(first, learners, check=False)
    assert any(isinstance(error, StopError) for error in ran.errors.values())
    committed = read_pool(checkpoints(tmp_path)[-1])["committed"]
    width = learners * (1 if name in EVERY_STEP else 2)
    asked = 18 if where == "in mid-epoch" else PER_EPOCH
    assert committed == [[0, -(-asked // width) * width]]
    second = Training(strategy, tmp_path, every, resume=True)
    ran = run(second, learners, scheduler=SeededScheduler(learners))
    assert ran.counts.committed == PER_EPOCH * EPOCHS - committed[0][1]
    assert_same(whole, second)
    assert second.is_leader == [0]


@pytest.mark.parametrize(
    ("name", "learners"),
    [("solo", 1), ("allreduce", 2), ("plain", 3), ("delay-by-one", 3), ("slowmo", 3)],
)
def test_goes_on_after_all_were_killed(name: str, learners: int, tmp_path: Path) -> None:
    whole = uninterrupted(name, learners)
    strategy = STRATEGIES.get(name, name)
    resume, rejoiner = False, 0
    while True:
        training = Training(strategy, tmp_path, 4 * BATCH, resume=resume)
        # Each life is long enough for a checkpoint, and ends at another point of a step.
        when = (8.05 + 0.37 * rejoiner) / learners + 0.9
        faults = [] if rejoiner == 4 else [Kill(when, n) for n in range(learners)]
        run(training, learners, faults=faults)
        if not faults:
            break
        resume, rejoiner = True, rejoiner + 1
    assert training.steps[0] < PER_EPOCH * EPOCHS // learners
    assert_same(whole, training)


@pytest.mark.parametrize(("name", "learners"), [("solo", 1), ("plain", 2), ("allreduce", 3)])
def test_goes_on_after_all_broke_out(name: str, learners: int, tmp_path: Path) -> None:
    whole = uninterrupted(name, learners)
    strategy = STRATEGIES.get(name, name)
    first = Training(strategy, tmp_path, 6 * BATCH, leave_after=20 // learners)
    run(first, learners)
    second = Training(strategy, tmp_path, 6 * BATCH, resume=True)
    run(second, learners)
    assert_same(whole, second)


@pytest.mark.parametrize("place", [lambda t, n: alone(t), simulated, threads])
def test_every_place_can_go_on(place: Callable[..., Ran], tmp_path: Path) -> None:
    """Without dropout: threads share torch's generator."""
    learners = 1 if place not in (simulated, threads) else 2

    def training(**options: Any) -> Training:
        return Training("allreduce", tmp_path, 6 * BATCH, **options)

    first = training(stop_after=20 // learners)
    if place in (simulated, threads):
        place(first, learners, check=False)
    else:
        with pytest.raises(StopError):
            place(first, learners)
    second = training(resume=True)
    ran = place(second, learners)
    assert ran.counts.committed == EPOCHS * PER_EPOCH - 18
    assert sorted(second.ends) == list(range(learners))
    assert all(torch.equal(second.ends[0], end) for end in second.ends.values())


def test_a_run_that_was_over_only_hands_out_the_model(tmp_path: Path) -> None:
    for name, learners in [("solo", 1), ("plain", 2), ("allreduce", 2), ("dynamic", 2)]:
        dynamic = unisono.Averaging(every=16, sharding=unisono.Sharding.DYNAMIC)
        strategy = STRATEGIES.get(name, dynamic if name == "dynamic" else name)
        folder = tmp_path / name
        first = Training(strategy, folder)
        run(first, learners)
        last = read_pool(checkpoints(folder)[-1])["committed"]
        if name != "dynamic":
            assert last == [[0, PER_EPOCH * EPOCHS]]
        second = Training(strategy, folder, resume=True)
        run(second, learners)
        assert second.is_leader == [0]
        if name != "dynamic":
            assert not second.steps
            assert_same(first, second)


@pytest.mark.parametrize("learners", [1, 2])
def test_fewer_epochs_than_are_behind_it_are_refused(learners: int, tmp_path: Path) -> None:
    run(Training(STRATEGIES["plain"], tmp_path), learners)
    second = Training(STRATEGIES["plain"], tmp_path, resume=True, epochs=EPOCHS - 1)
    with pytest.raises(UserError, match=f"{PER_EPOCH * EPOCHS} minibatches behind it"):
        run(second, learners)


@pytest.mark.parametrize("learners", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "strategy",
    [
        unisono.Averaging(every=2 * BATCH, sharding=unisono.Sharding.DYNAMIC),
        unisono.ADPSGD(every=BATCH),
    ],
    ids=lambda strategy: strategy.name,
)
def test_drawn_runs_commit_the_rest_once(
    strategy: Any, learners: int, seed: int, tmp_path: Path
) -> None:
    total = PER_EPOCH * EPOCHS
    when = (20.3 + 2 * seed) / learners + 1
    first = Training(strategy, tmp_path, 4 * BATCH)
    killed = [Kill(when, n) for n in range(learners)]
    run(first, learners, faults=killed, scheduler=SeededScheduler(seed), slowness={0: 1.5})
    pool = read_pool(checkpoints(tmp_path)[-1])
    done = sum(b - a for a, b in pool["committed"])
    assert 0 < done < total
    second = Training(strategy, tmp_path, 4 * BATCH, resume=True)
    ran = run(second, learners, scheduler=SeededScheduler(seed))
    assert ran.counts.committed == ran.counts.leased == total - done
    assert sum(second.steps.values()) == total - done
    assert ran.state.pool.over
    if learners > 1:
        assert torch.allclose(second.ends[0], second.ends[1])


def test_another_number_of_learners_can_go_on(tmp_path: Path) -> None:
    strategy = STRATEGIES["plain"]
    first = Training(strategy, tmp_path, 6 * BATCH, stop_after=10)
    run(first, 2, check=False)
    second = Training(strategy, tmp_path, 6 * BATCH, resume=True)
    ran = run(second, 3)
    assert ran.state.pool.over
    assert all(torch.equal(second.ends[0], end) for end in second.ends.values())


def test_the_coordinator_may_die_on_the_way(tmp_path: Path) -> None:
    whole = uninterrupted("plain", 2)
    strategy = STRATEGIES["plain"]
    first = Training(strategy, tmp_path, 6 * BATCH, stop_after=11)
    faults = [KillCoordinator(4.2), KillCoordinator(8.7)]
    run(first, 2, check=False, faults=faults)
    second = Training(strategy, tmp_path, 6 * BATCH, resume=True)
    run(second, 2, faults=faults)
    assert_same(whole, second)


def test_who_did_not_fail_is_told(tmp_path: Path) -> None:
    first = Training("allreduce", tmp_path, stop_after=3)
    ran = run(first, 3, check=False)
    told = [error for error in ran.errors.values() if isinstance(error, Abandoned)]
    assert len(ran.errors) == 3 and told
    assert all("StopError: enough" in error.failure.text for error in told)
