"""Loops as users write them: over epochs, stopped early, with schedulers; all kinds of loaders."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import unisono
from support.loops import (
    ALL,
    BATCH,
    EXAMPLES,
    SHARING,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    plain_batches,
    sgd,
    simulated,
)
from unisono.simulation import Kill

Together = Callable[..., Any]
SERVED = {**ALL, "server": unisono.Server(push_every=2)}
SHARED = {name: strategy for name, strategy in SERVED.items() if name != "solo"}
PER_EPOCH = EXAMPLES // BATCH


# A draw in each epoch.


@pytest.mark.parametrize("strategy", SERVED)
def test_a_draw_in_each_epoch_trains_each_minibatch_once(strategy: str, together: Together) -> None:
    epochs = 3
    steps: Counter[int] = Counter()
    leaders: list[int] = []
    leaders_after: list[int] = []
    seen: list[bool] = []

    def loop() -> None:
        model = network()
        data = DataLoader(dataset(), BATCH, shuffle=True)
        with unisono.Learner(model, sgd(model), SERVED[strategy], epochs=epochs) as learner:
            for epoch in range(epochs):
                for batch in learner.draw(data):
                    steps[epoch] += 1
                    seen.append(learner.epoch == epoch)
                    learner.step(loss_of(model, batch))
                with learner.consensus():
                    pass
            if learner.is_leader:
                leaders.append(learner.number)
            assert learner.progress == 1.0
        if learner.is_leader:
            leaders_after.append(learner.number)

    ran = alone(loop) if strategy == "solo" else together(loop, 3)
    assert ran.state.pool.over and ran.counts.committed == epochs * PER_EPOCH
    assert len(leaders) == 1 and leaders_after == leaders
    if strategy != "allreduce":  # its learners compute in step, also where there is no minibatch
        assert sum(steps.values()) == epochs * PER_EPOCH
        assert all(seen)
    assert set(steps) == {0, 1, 2}


def test_a_draw_in_each_epoch_learns_what_one_draw_does() -> None:
    ends = []
    for nested in (False, True):
        model = network()
        data = DataLoader(dataset(), BATCH, shuffle=True)

        def loop(model: Any = model, nested: bool = nested, data: Any = data) -> None:
            epochs = 3 if nested else None
            with unisono.Learner(model, sgd(model), epochs=epochs) as learner:
                for _ in range(3 if nested else 1):
                    for batch in learner.draw(data) if nested else learner.draw(data, 3):
                        learner.step(loss_of(model, batch))

        alone(loop)
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_epochs_that_were_trained_before_a_resume_are_empty(tmp_path: Path) -> None:
    steps: Counter[tuple[int, bool]] = Counter()

    def run(resume: bool) -> None:
        model = network()
        data = DataLoader(dataset(), BATCH, shuffle=True)
        with unisono.Learner(
            model, sgd(model), epochs=3, checkpoints=tmp_path, resume=resume
        ) as learner:
            for epoch in range(3):
                for batch in learner.draw(data):
                    steps[epoch, resume] += 1
                    learner.step(loss_of(model, batch))
                    if steps[1, False] == 3 and not resume:
                        return

    alone(lambda: run(False))
    alone(lambda: run(True))
    assert steps == {(0, False): 13, (1, False): 3, (1, True): 13, (2, True): 13}


def test_what_is_left_after_a_break_comes_with_the_next_epoch() -> None:
    steps: Counter[int] = Counter()

    def loop() -> None:
        model = network()
        data = DataLoader(dataset(), BATCH, shuffle=True)
        with unisono.Learner(model, sgd(model), epochs=2) as learner:
            for epoch in range(2):
                for batch in learner.draw(data):
                    steps[epoch] += 1
                    learner.step(loss_of(model, batch))
                    if epoch == 0 and steps[0] == 4:
                        break
            assert learner.is_leader

    ran = alone(loop)
    assert steps == {0: 4, 1: 22} and ran.counts.committed == 26


def test_a_second_draw_without_epochs_is_refused() -> None:
    def loop() -> None:
        model = network()
        data = DataLoader(dataset(), BATCH, shuffle=True)
        with unisono.Learner(model, sgd(model)) as learner:
            for _ in range(2):
                for batch in learner.draw(data):
                    learner.step(loss_of(model, batch))

    with pytest.raises(unisono.UserError, match=r"Learner\(\.\.\., epochs=E\)"):
        alone(loop)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda learner, d: learner.draw(d, 2), "each draw"),
        (lambda learner, d: [learner.draw(d) for _ in range(3)], "epochs=2"),
        (lambda learner, d: [learner.draw(x) for x in (d, dataset())], "the same data"),
    ],
)
def test_draws_that_do_not_fit_the_epochs_are_refused(how: Any, why: str) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), epochs=2) as learner:
            how(learner, DataLoader(dataset(), BATCH, shuffle=True))

    with pytest.raises(unisono.UserError, match=why) as caught:
        alone(loop)
    assert "\n" not in str(caught.value)
    with pytest.raises(unisono.UserError, match="at least 1"):
        model = network()
        unisono.Learner(model, sgd(model), epochs=0)


# Early ends.


@pytest.mark.parametrize("strategy", SERVED)
@pytest.mark.parametrize("nested", [False, True])
def test_stop_ends_all_loops_with_one_model(
    strategy: str, nested: bool, together: Together
) -> None:
    epochs = 40
    leaders: list[int] = []
    ends: dict[int, torch.Tensor] = {}
    progress: dict[int, float] = {}

    def loop() -> None:
        model = network()
        data = DataLoader(dataset(), BATCH, shuffle=True)
        with unisono.Learner(
            model, sgd(model), SERVED[strategy], epochs=epochs if nested else None
        ) as learner:
            for _ in range(epochs if nested else 1):
                for batch in learner.draw(data) if nested else learner.draw(data, epochs):
                    learner.step(loss_of(model, batch))
                    if learner.every(examples=2 * EXAMPLES):  # on one learner
                        learner.stop()
            progress[learner.number] = learner.progress
            if learner.is_leader:
                leaders.append(learner.number)
            with learner.consensus():
                ends[learner.number] = flat(model)

    learners = 1 if strategy == "solo" else 3
    ran = alone(loop) if learners == 1 else together(loop, learners)
    done = ran.counts.committed + ran.counts.skipped
    assert 2 * PER_EPOCH - 20 <= done < 25 * PER_EPOCH
    if strategy == "solo":
        assert done == 2 * PER_EPOCH
    else:
        assert ran.state.pool.over and ran.state.pool.stopped
        assert ran.counts.leased == done + ran.counts.returned
    assert len(leaders) == 1 and len(ends) == learners
    assert all(torch.allclose(end, ends[0]) for end in ends.values())
    assert all(0 < reached < 0.7 for reached in progress.values())


def test_a_death_after_the_stop_loses_nothing_that_was_handed_out() -> None:
    for at in range(8, 30, 3):
        leaders: list[int] = []

        def loop(leaders: list[int] = leaders) -> None:
            model = network()
            with unisono.Learner(model, sgd(model), SHARING["dynamic"]) as learner:
                for batch in learner.draw(dataset(), 20, BATCH):
                    learner.step(loss_of(model, batch))
                    if learner.every(examples=EXAMPLES):
                        learner.stop()
                if learner.is_leader:
                    leaders.append(learner.number)

        ran = simulated(loop, 3, faults=[Kill(at=float(at), number=1)], check=False)
        assert ran.state.pool.over and len(leaders) == 1
        assert ran.counts.leased == ran.counts.committed + ran.counts.returned


@pytest.mark.parametrize("strategy", SERVED)
def test_the_last_to_break_out_leads(strategy: str, together: Together) -> None:
    leaders: list[int] = []
    shown: list[torch.Tensor] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SERVED[strategy]) as learner:
            for batch in learner.draw(dataset(), 8, BATCH):
                learner.step(loss_of(model, batch))
                if learner.progress > 0.5:
                    break
            if learner.is_leader:
                leaders.append(learner.number)
                with learner.consensus():
                    shown.append(flat(model))
                learner.event("validation", accuracy=1.0)

    learners = 1 if strategy == "solo" else 3
    ran = alone(loop) if learners == 1 else together(loop, learners)
    assert len(leaders) == 1 and not ran.state.lost
    assert not torch.equal(shown[0], flat(network()))


def test_an_error_in_the_loop_is_no_break(together: Together) -> None:
    """The iterator is dropped before the with statement sees the error."""

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING["static"]) as learner:
            for batch in learner.draw(dataset(), 8, BATCH):
                learner.step(loss_of(model, batch))
                if learner.number == 1 and learner.progress > 0.3:
                    raise ZeroDivisionError

    ran = together(loop, 2, check=False)
    assert isinstance(ran.errors[1], ZeroDivisionError)
    assert ran.state.failure is not None and "ZeroDivisionError" in ran.state.failure.text


# How far the run is.


def test_a_scheduler_by_progress_ends_where_it_should(together: Together) -> None:
    rates: dict[int, list[float]] = defaultdict(list)

    def loop() -> None:
        model = network()
        optimizer = sgd(model, lr=0.5)
        with unisono.Learner(model, optimizer, SHARING["static"]) as learner:
            scheduler = learner.scheduler(optimizer, lambda progress: 1 - progress / 2)
            assert optimizer.param_groups[0]["lr"] == 0.5
            for batch in learner.draw(dataset(), 4, BATCH):
                learner.step(loss_of(model, batch))
                scheduler.step()
                rates[learner.number].append(scheduler.get_last_lr()[0])
                assert scheduler.get_last_lr()[0] == 0.5 * (1 - learner.progress / 2)

    together(loop, 3)
    for seen in rates.values():
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] == pytest.approx(0.25, abs=0.01)


def test_a_scheduler_by_progress_goes_on_after_a_resume(tmp_path: Path) -> None:
    ends = []
    for stops in ((52,), (20, 52)):
        folder = tmp_path / str(len(stops))
        for stop in stops:
            model = network()
            optimizer = sgd(model)

            def loop(
                model: Any = model, optimizer: Any = optimizer, stop: int = stop, to: Path = folder
            ) -> None:
                with unisono.Learner(
                    model,
                    optimizer,
                    checkpoints=to,
                    checkpoint_every=5 * BATCH,
                    resume=True,
                ) as learner:
                    scheduler = learner.scheduler(optimizer, lambda progress: 0.01**progress)
                    for batch in learner.draw(dataset(), 4, BATCH):
                        learner.step(loss_of(model, batch))
                        scheduler.step()
                        if learner.progress * 52 >= stop:
                            break

            alone(loop)
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_the_length_of_a_draw_is_refused_and_nobody_needs_it() -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model)) as learner:
            minibatches = learner.draw(dataset(), batch_size=BATCH)
            with pytest.raises(unisono.UserError, match=r"learner\.progress") as caught:
                len(minibatches)  # type: ignore[arg-type]
            assert isinstance(caught.value, TypeError)  # what tqdm and list() expect
            assert len(list(minibatches)) == PER_EPOCH

    alone(loop)


@pytest.mark.parametrize("strategy", ["static", "dynamic", "allreduce", "delay", "gossip"])
@pytest.mark.parametrize("every", [2 * BATCH, 5 * EXAMPLES])
def test_every_and_epoch_go_with_the_time(strategy: str, every: int) -> None:
    """Also with rounds that are longer than an epoch."""
    strategies = {
        **SHARING,
        "static": unisono.Averaging(every=every, sharding=unisono.Sharding.STATIC),
        "dynamic": unisono.Averaging(every=every, sharding=unisono.Sharding.DYNAMIC),
    }
    epochs = 10
    passed: list[float] = []
    seen: list[int] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), strategies[strategy]) as learner:
            for batch in learner.draw(dataset(), epochs, BATCH):
                seen.append(learner.epoch)
                learner.step(loss_of(model, batch))
                if learner.every(examples=EXAMPLES):
                    passed.append(learner.progress)

    simulated(loop, 2)
    assert len(passed) == epochs
    lease = 0.1 * 16 / PER_EPOCH if strategy in ("dynamic", "gossip") else 0.0
    assert all(later > earlier - lease for earlier, later in pairwise(passed))
    assert sorted(round(p * epochs) for p in passed) == list(range(1, epochs + 1))
    latest = 0
    for epoch in seen:
        assert epoch >= latest - (2 if lease else 1)
        latest = max(latest, epoch)


# Loaders.


def loaded(loader: Any) -> list[Any]:
    batches: list[Any] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model)) as learner:
            for batch in learner.draw(loader, 2):
                batches.append(batch)
                learner.step(loss_of(model, batch))

    alone(loop)
    return batches


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_plain_batch_sampler_says_how_to_cut(drop_last: bool) -> None:
    data = dataset()
    batches = BatchSampler(RandomSampler(data), 10, drop_last)
    sizes = [len(x) for x, _ in loaded(DataLoader(data, batch_sampler=batches))]
    assert sizes == ([10] * 10 + [4] * (not drop_last)) * 2


@pytest.mark.parametrize("by", ["shuffle", "sampler"])
def test_without_shuffle_the_order_is_the_datasets(
    by: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = dataset()
    loader = DataLoader(data, BATCH, shuffle=False)
    if by == "sampler":
        loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), BATCH, False))
    with caplog.at_level(logging.WARNING, "unisono"):
        batches = loaded(loader)
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.cat([data.tensors[0]] * 2))
    assert [record.message.count("shuffle=True") for record in caplog.records] == [1]


def test_with_shuffle_the_order_is_the_pools(caplog: pytest.LogCaptureFixture) -> None:
    batches = loaded(DataLoader(dataset(), BATCH, shuffle=True))
    expected = list(plain_batches(2))
    assert all(torch.equal(x, z) for (x, _), (z, _) in zip(batches, expected, strict=True))
    assert not caplog.records
