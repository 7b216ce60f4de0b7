"""Where a learner is: progress, epochs, multiples of examples; and the consensus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import unisono
from support.loops import (
    ALL,
    BATCH,
    DYNAMIC_AVERAGING,
    EXAMPLES,
    SHARING,
    STATIC_AVERAGING,
    Ran,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    sgd,
    simulated,
)
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.positions import Positions

Together = Callable[..., Ran]
EPOCHS = 3


@pytest.mark.parametrize("strategy", ALL)
def test_progress_and_epoch_alone(strategy: str) -> None:
    seen: list[tuple[float, int]] = []
    model = network()

    def loop() -> None:
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            assert learner.progress == 0.0 and learner.epoch == 0
            for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                seen.append((learner.progress, learner.epoch))
                learner.step(loss_of(model, batch))
            assert learner.progress == 1.0

    alone(loop)
    assert seen == [((p + 1) / 39, p // 13) for p in range(39)]


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("learners", [2, 3])
def test_progress_in_company(strategy: str, learners: int, together: Together) -> None:
    seen: dict[int, list[float]] = {}
    epochs: Counter[int] = Counter()

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            mine = seen[learner.number] = [learner.progress]
            for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                mine.append(learner.progress)
                epochs[learner.epoch] += 1
                learner.step(loss_of(model, batch))
            mine.append(learner.progress)

    together(loop, learners)
    for mine in seen.values():
        assert mine == sorted(mine)
        assert mine[0] == 0.0 and mine[-1] == 1.0
    if strategy == "allreduce":
        assert all(mine == seen[0] for mine in seen.values())
    elif strategy == "static":
        assert all(mine[:-3] == seen[0][: len(mine) - 3] for mine in seen.values())
    if strategy != "allreduce":
        assert epochs == {0: 13, 1: 13, 2: 13}


def test_a_schedule_on_progress_keeps_all_reduced_learners_together(together: Together) -> None:
    """Were the rates not the same, the parameters would drift apart."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, "allreduce") as learner:
            for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                optimizer.param_groups[0]["lr"] = 0.2 * 0.01**learner.progress
                learner.step(loss_of(model, batch))
        ends[learner.number] = flat(model)

    together(loop, 3)
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("every", [1, 7, 30, EXAMPLES, 1000])
def test_every_is_true_once_a_multiple(strategy: str, every: int) -> None:
    for learners in [1] if strategy == "solo" else [1, 2, 3]:
        true: list[float] = []

        def loop(true: list[float] = true) -> None:
            model = network()
            with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
                for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                    learner.step(loss_of(model, batch))
                    if learner.every(examples=every):
                        true.append(learner.progress)

        simulated(loop, learners, scheduler=SeededScheduler(learners))
        # A minibatch of 8 can pass several multiples of 7 or less, and says so once.
        positions = [p for p in range(39) if (8 * p + 8) // every > 8 * p // every]
        assert len(true) == len(positions)


def test_every_tells_what_happened_since_it_was_asked() -> None:
    model, true = network(), []

    def loop() -> None:
        with unisono.Learner(model, sgd(model)) as learner:
            for place, batch in enumerate(learner.draw(dataset(), batch_size=BATCH)):
                learner.step(loss_of(model, batch))
                if place % 4 == 0:
                    true.append(learner.every(examples=40))
            with pytest.raises(unisono.UserError, match="at least 1"):
                learner.every(examples=0)

    alone(loop)
    assert true == [False, True, False, True]


@pytest.mark.parametrize("strategy", ALL)
def test_consensus_gives_the_own_parameters_back(strategy: str, together: Together) -> None:
    shown: dict[int, list[torch.Tensor]] = {}

    def loop() -> None:
        model = network(norm=True)
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            mine = shown[learner.number] = []
            for place, batch in enumerate(learner.draw(dataset(), batch_size=BATCH)):
                learner.step(loss_of(model, batch))
                before = {name: t.clone() for name, t in model.state_dict().items()}
                with learner.consensus() as consensus:
                    assert consensus is model
                    mine.append(flat(model))
                if place == 2:
                    with pytest.raises(ZeroDivisionError), learner.consensus():
                        raise ZeroDivisionError
                after = model.state_dict()
                assert all(torch.equal(before[name], after[name]) for name in before)
            with learner.consensus():
                mine.append(flat(model))

    if strategy == "solo":
        alone(loop)
        return
    together(loop, 2)
    exact = strategy != "dynamic"
    assert torch.equal(shown[0][-1], shown[1][-1]) or not exact
    assert torch.allclose(shown[0][-1], shown[1][-1])


def test_the_consensus_is_the_last_rounds_mean() -> None:
    """Static sharding: between rounds it stands still; a round averages what went into it."""
    own: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    shown: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def loop() -> None:
        model = network()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, STATIC_AVERAGING) as learner:
            number = learner.number
            for batch in learner.draw(dataset(96), batch_size=BATCH):
                with learner.consensus():
                    shown[number].append(flat(model))
                learner.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
                own[number].append(flat(model))

    simulated(loop, 2)
    assert torch.equal(shown[0][0], flat(network()))
    for number in (0, 1):  # before the first round it is the learner's own model
        assert torch.equal(shown[number][1], own[number][0])
    assert not torch.equal(own[0][0], own[1][0])
    for step in range(2, 6):
        assert torch.equal(shown[0][step], shown[1][step])
        if step % 2 == 1:
            assert torch.equal(shown[0][step], shown[0][step - 1])
    for step in (1, 3, 5):
        assert torch.equal(own[0][step], own[1][step])
        if step < 5:
            assert torch.equal(own[0][step], shown[0][step + 1])


@pytest.mark.parametrize("seed", range(6))
def test_rounds_go_on_while_the_consensus_is_looked_at(seed: int) -> None:
    """Dynamic sharding: others see a learner's own work, whatever its model shows meanwhile.

    Each minibatch moves a number of its own, so the consensus tells which ones are in it.
    """
    final: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = nn.Linear(24, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with unisono.Learner(model, optimizer, DYNAMIC_AVERAGING) as learner:
            for _ in learner.draw(dataset(96), epochs=2, batch_size=BATCH):
                assert learner._progress is not None and learner._progress.current is not None
                learner.step(-model.weight[0, learner._progress.current.position])
                assert learner._session is not None
                with learner.consensus():
                    learner._session.fabric.sleep(0.7)
            with learner.consensus():
                final[learner.number] = flat(model)

    ran = simulated(loop, 2, scheduler=SeededScheduler(seed), slowness={1: 1.7})
    assert ran.counts.committed == 24
    for end in final.values():
        assert torch.allclose(end, final[0])
        assert (end > 0.05).all() and (end <= 1.0 + 1e-6).all()


def test_a_step_inside_the_consensus_is_refused() -> None:
    model = network()

    def loop() -> None:
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, STATIC_AVERAGING) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.backward(loss_of(model, batch))
                with learner.consensus():
                    optimizer.step()

    with pytest.raises(unisono.UserError, match=r"inside learner\.consensus"):
        alone(loop)


def test_positions_hold_each_example_once_an_epoch() -> None:
    for examples, batch in [(1, 1), (7, 3), (104, 8), (1000, 7)]:
        for drop_last in (False, True):
            if drop_last and examples < batch:
                continue
            positions = Positions(examples, batch, 2, seed=3, drop_last=drop_last)
            for epoch in range(2):
                first = epoch * positions.per_epoch
                places = range(first, first + positions.per_epoch)
                found = [int(i) for p in places for i in positions.indices(p)]
                assert len(set(found)) == len(found)
                assert len(found) == (examples // batch * batch if drop_last else examples)
                assert [positions.count(p) for p in places] == [
                    len(positions.indices(p)) for p in places
                ]
                assert positions.examples_before(first) == epoch * len(found)
            assert positions.examples_before(positions.total) == 2 * len(found)
    with pytest.raises(unisono.UserError, match="less than one minibatch"):
        Positions(3, 4, 1, 0, drop_last=True)
    with pytest.raises(unisono.UserError, match="no examples"):
        Positions(0, 4, 1, 0)
    with pytest.raises(unisono.UserError, match="at least 1"):
        Positions(3, 4, 0, 0)
