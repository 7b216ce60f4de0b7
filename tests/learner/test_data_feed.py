"""The user's data: DataLoaders with and without workers, datasets, and what is refused."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

import unisono
from support.alive import is_alive
from support.loops import (
    BATCH,
    DYNAMIC_AVERAGING,
    STATIC_AVERAGING,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    plain_batches,
    sgd,
    simulated,
    threads,
)
from unisono.learner.data_feed import DataFeed, as_source
from unisono.learner.planner import Minibatch
from unisono.learner.positions import Positions
from unisono.learner.slices import WHOLE, Slices
from unisono.learner.workers import Workers, WorkerSettings
from unisono.simulation import Pause, run_loops

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
EXAMPLES = 104


class Points(Dataset[Any]):
    """Examples that say who made them; module-level, so that any kind of process can."""

    def __init__(self, *, fails_at: int | None = None, dies_at: int | None = None) -> None:
        self.data = dataset()
        self.fails_at = fails_at
        self.dies_at = dies_at
        self.opened = 0

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> Any:
        if place == self.fails_at:
            raise LookupError(f"example {place} is broken")
        if place == self.dies_at:
            os.kill(os.getpid(), 9)
        x, y = self.data[place]
        return x, y, os.getpid(), self.opened


def collate(items: list[Any]) -> Any:
    x, y, pids, opened = zip(*items, strict=True)
    info = get_worker_info()
    worker = -1 if info is None else info.id
    return torch.stack(x), torch.stack(y), set(pids), set(opened), worker


def open_files(number: int) -> None:
    """A ``worker_init_fn``: changes the worker's own copy of the dataset."""
    info = get_worker_info()
    assert info is not None and info.id == number and info.num_workers == 2
    info.dataset.opened = 10 + number  # type: ignore[attr-defined]


def drawn_from(
    loader: Any, *, epochs: int = 1, strategy: Any = "solo", **options: Any
) -> list[Any]:
    """All that one learner draws, without training anything of worth."""
    batches: list[Any] = []
    model = network()
    with unisono.Learner(model, sgd(model), strategy, **options) as learner:
        for batch in learner.draw(loader, epochs=epochs):
            batches.append(batch)
            learner.step(loss_of(model, batch[:2]))
    return batches


def check_order(batches: list[Any], epochs: int = 1) -> None:
    expected = list(plain_batches(epochs))
    assert len(batches) == len(expected)
    for batch, (x, y) in zip(batches, expected, strict=True):
        assert torch.equal(batch[0], x) and torch.equal(batch[1], y)


@pytest.mark.parametrize(
    "context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)]
)
def test_workers_use_all_that_the_loader_says(context: str) -> None:
    loader = DataLoader(
        Points(),
        BATCH,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        worker_init_fn=open_files,
        multiprocessing_context=context,
        prefetch_factor=3,
    )
    batches = drawn_from(loader, epochs=2)
    check_order(batches, 2)
    workers = [batch[4] for batch in batches]
    assert workers == [place % 2 for place in range(26)]
    pids = set().union(*(batch[2] for batch in batches))
    assert len(pids) == 2 and os.getpid() not in pids
    assert all(batch[3] == {10 + batch[4]} for batch in batches)
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_without_workers_the_learner_fetches_itself(prefetch: int) -> None:
    loader = DataLoader(Points(), BATCH, collate_fn=collate, shuffle=True)
    batches = drawn_from(loader, prefetch=prefetch)
    check_order(batches)
    assert all(batch[2] == {os.getpid()} and batch[4] == -1 for batch in batches)


def test_what_is_drawn_at_random_depends_on_seed_and_position_alone() -> None:
    """Not on the number of workers, of learners, or on where the run was cut."""

    def made(workers: int, learners: int, seed: int) -> dict[float, Any]:
        found: dict[float, Any] = {}

        def loop() -> None:
            model = network()
            loader = DataLoader(Noisy(), BATCH, num_workers=workers, shuffle=True)
            strategy = "solo" if learners == 1 else DYNAMIC_AVERAGING
            with unisono.Learner(model, sgd(model), strategy, seed=seed) as learner:
                for x, y, noise in learner.draw(loader, epochs=2):
                    key = (learner.epoch, float(x[0, 0]))
                    found[key] = tuple(map(tuple, noise.tolist()))
                    learner.step(loss_of(model, (x, y)))

        simulated(loop, learners)
        return found

    first = made(1, 1, 0)
    assert len(set(first.values())) == 26
    assert made(3, 1, 0) == first
    assert made(2, 2, 0) == first
    assert made(1, 1, 1) != first


class Noisy(Dataset[Any]):
    """Draws from every generator that there is."""

    def __init__(self) -> None:
        self.data = dataset()

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> Any:
        noise = torch.tensor([float(torch.rand(())), random.random(), float(np.random.rand())])
        return (*self.data[place], noise)


@pytest.mark.parametrize("strategy", [STATIC_AVERAGING, DYNAMIC_AVERAGING, "allreduce"])
@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_workers_never_wait_for_the_pool(strategy: Any, learners: int, prefetch: int) -> None:
    """Far more is asked for ahead than the pool has to give: nobody is left with work in hand."""
    steps: dict[int, int] = {}
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        loader = DataLoader(dataset(), BATCH, num_workers=2, prefetch_factor=20, shuffle=True)
        with unisono.Learner(model, sgd(model), strategy, prefetch=prefetch) as learner:
            for batch in learner.draw(loader, epochs=2):
                learner.step(loss_of(model, batch))
                steps[learner.number] = steps.get(learner.number, 0) + 1
        ends[learner.number] = flat(model)

    ran = simulated(loop, learners)
    assert ran.counts.committed == 26
    assert ran.counts.leased == 26
    if strategy is not DYNAMIC_AVERAGING:
        assert all(torch.equal(ends[0], end) for end in ends.values())


def test_workers_on_threads() -> None:
    """Forked while other learners' threads run: not as users have it, but it must not hang."""

    def loop() -> None:
        model = network()
        loader = DataLoader(
            dataset(), BATCH, num_workers=1, multiprocessing_context="forkserver", shuffle=True
        )
        with unisono.Learner(model, sgd(model), DYNAMIC_AVERAGING) as learner:
            for batch in learner.draw(loader, epochs=2):
                learner.step(loss_of(model, batch))

    assert threads(loop, 2).counts.committed == 26


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_in_a_worker_reaches_the_loop(prefetch: int) -> None:
    x, _ = list(plain_batches())[5]
    broken = int(torch.nonzero((dataset().tensors[0] == x[3]).all(1)))
    loader = DataLoader(
        Points(fails_at=broken), BATCH, num_workers=2, collate_fn=collate, shuffle=True
    )
    batches: list[Any] = []
    model = network()

    def loop() -> None:
        with unisono.Learner(model, sgd(model), prefetch=prefetch) as learner:
            for batch in learner.draw(loader):
                batches.append(batch)
                learner.step(loss_of(model, batch[:2]))

    with pytest.raises(LookupError, match=f"example {broken} is broken") as caught:
        alone(loop)
    assert "worker process 1" in str(caught.value) and "Traceback" in str(caught.value)
    assert len(batches) == 5


def fails_to_start(number: int) -> None:
    raise ValueError(f"worker {number} does not like to")


def test_an_exception_in_worker_init_fn() -> None:
    loader = DataLoader(Points(), BATCH, num_workers=2, worker_init_fn=fails_to_start, shuffle=True)
    with pytest.raises(ValueError, match="worker 0 does not like to"):
        drawn_from(loader)


def test_what_cannot_be_sent_is_an_exception() -> None:
    loader = DataLoader(
        Points(), BATCH, num_workers=1, collate_fn=lambda items: lambda: items, shuffle=True
    )
    with pytest.raises(Exception, match=r"(?i)pickle|lambda"):
        drawn_from(loader)


def test_a_worker_that_dies_is_named() -> None:
    loader = DataLoader(Points(dies_at=50), BATCH, num_workers=2, collate_fn=collate, shuffle=True)
    with pytest.raises(unisono.UserError, match="was killed by signal 9") as caught:
        drawn_from(loader)
    assert "\n" not in str(caught.value)


class Slow(Points):
    """One example takes for ever."""

    def __getitem__(self, place: int) -> Any:
        if place == 50:
            time.sleep(1000)
        return super().__getitem__(place)


def test_a_worker_that_takes_too_long() -> None:
    loader = DataLoader(Slow(), BATCH, num_workers=2, collate_fn=collate, timeout=0.5, shuffle=True)
    with pytest.raises(unisono.UserError, match=r"no minibatch in 0\.5 s"):
        drawn_from(loader)


def test_breaking_out_ends_workers_that_are_busy() -> None:
    """The learner does not wait for an example that takes for ever."""
    model = network()
    loader = DataLoader(
        Slow(), BATCH, num_workers=2, collate_fn=collate, prefetch_factor=8, shuffle=True
    )
    began = time.monotonic()
    with unisono.Learner(model, sgd(model)) as learner:
        for batch in learner.draw(loader):
            learner.step(loss_of(model, batch[:2]))
            break
    assert time.monotonic() - began < 20
    assert not any(is_alive(pid) for pid in batch[2])


def test_workers_end_when_their_learner_is_gone() -> None:
    """Each forgets the pipes of the others that it inherited; so the end of one is its end."""
    context = torch.multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def learner() -> None:
        crew = WorkerSettings(dataset=None, count=3, context=context)
        workers = Workers(crew, lambda position: position, seed=0)
        for position in range(6):
            workers.ask(position, position)
        assert [workers.take() for _ in range(6)] == list(range(6))
        theirs.send(workers.pids)
        time.sleep(1000)

    process = context.Process(target=learner)
    process.start()
    assert ours.poll(20)
    pids = ours.recv()
    assert all(is_alive(pid) for pid in pids)
    process.kill()
    process.join()
    deadline = time.monotonic() + 100
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_new_life_begins_with_what_it_asks_for() -> None:
    crew = WorkerSettings(dataset=None, count=2, prefetch_factor=2)
    workers = Workers(crew, lambda position: -position, seed=0)
    for position in (1, 2, 3):
        workers.ask(position, position)
    assert workers.take() == -1
    workers.forget()
    for position in (7, 8):
        workers.ask(position, position)
    assert [workers.take(), workers.take()] == [-7, -8]
    workers.stop()
    workers.join()


@pytest.mark.parametrize("strategy", [STATIC_AVERAGING, DYNAMIC_AVERAGING])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_workers_of_a_learner_that_was_held_for_dead(strategy: Any, prefetch: int) -> None:
    """What its workers made for the former life is not taken for what the new one asks for."""
    rejoiner: set[int] = set()

    def loop() -> None:
        model = network()
        loader = DataLoader(dataset(), BATCH, num_workers=2, prefetch_factor=3, shuffle=True)
        with unisono.Learner(model, sgd(model), strategy, prefetch=prefetch) as learner:
            for x, y in learner.draw(loader, epochs=4):
                assert learner._progress is not None and learner._rejoiner is not None
                assert learner._progress.current is not None
                expected = Positions(EXAMPLES, BATCH, 4, 0).indices(
                    learner._progress.current.position
                )
                assert torch.equal(x, dataset().tensors[0][torch.from_numpy(expected)])
                rejoiner.add(learner._rejoiner.session.fabric.address.incarnation)
                learner.step(loss_of(model, (x, y)))

    run = run_loops(loop, learners=2, faults=[Pause(5.5, 1, 14.0)], slowness={0: 2.0})
    assert run.state.pool.over and rejoiner == {0, 1}


def test_drop_last() -> None:
    loader = DataLoader(dataset(), 10, drop_last=True, shuffle=True)
    batches = drawn_from(loader, epochs=2)
    assert [len(batch[0]) for batch in batches] == [10] * 20
    assert [len(b[0]) for b in drawn_from(DataLoader(dataset(), 10, shuffle=True))] == [10] * 10 + [
        4
    ]


class All(Dataset[Any]):
    """Gives several examples at once."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> Any:
        raise AssertionError("one by one is slower")

    def __getitems__(self, places: list[int]) -> list[Any]:
        self.calls += 1
        return [dataset()[place] for place in places]


def test_a_dataset_may_give_several_examples_at_once() -> None:
    data = All()
    check_order(drawn_from(DataLoader(data, BATCH, shuffle=True)))
    assert data.calls == 13


def test_a_collate_function_may_return_anything() -> None:
    model, seen = network(), []
    loader = DataLoader(dataset(), BATCH, collate_fn=lambda items: None, shuffle=True)
    with unisono.Learner(model, sgd(model)) as learner:
        for batch in learner.draw(loader):
            seen.append(batch)
    assert seen == [None] * 13


class Stream(IterableDataset[Any]):
    """Has no length and no order but its own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lambda: Stream(), "needs batch_size, the examples of a minibatch"),
        (lambda: DataLoader(Stream(), batch_size=None), "needs batch_size, the examples of"),
        (lambda: DataLoader(Stream(), 4), "no length: tell draw.. how many minibatches"),
        (
            lambda: DataLoader(dataset(), 4, sampler=DistributedSampler(dataset(), 2, 0)),
            "DistributedSampler gives one of 2 parts of the data",
        ),
        (lambda: iter([1, 2]), r"was given an iterator \(list_iterator\)"),
        (lambda: dataset(), "needs batch_size"),
        (lambda: 3, "takes a DataLoader, a dataset or an iterable, not int"),
    ],
)
def test_refused_in_one_line(data: Any, why: str) -> None:
    with pytest.raises(unisono.UserError, match=why) as caught:
        as_source(data(), None)
    assert "\n" not in str(caught.value)


def test_no_data() -> None:
    model = network()
    with (
        unisono.Learner(model, sgd(model)) as learner,
        pytest.raises(unisono.UserError, match="no examples"),
    ):
        learner.draw([], batch_size=4)


class Epochs:
    """Minibatches that say which epoch they are of."""

    def __len__(self) -> int:
        return EXAMPLES

    def batch(self, indices: Any) -> Any:
        raise AssertionError("asked without an epoch")

    def epoch_batch(self, indices: Any, epoch: int) -> Any:
        return indices.tolist(), epoch


def test_data_that_differs_by_epoch_is_told_the_epoch_of_the_position() -> None:
    feeds = [DataFeed(as_source(Epochs(), BATCH), epochs=3, seed=4) for _ in range(2)]
    positions = Positions(EXAMPLES, BATCH, 3, 4)
    for feed, order in zip(feeds, (range(positions.total), [5, 0, 5, 14, 2, 5]), strict=True):
        for position in order:  # in order, or redone at any time by anybody
            indices, epoch = feed.load(Minibatch(position))
            assert indices == positions.indices(position).tolist()
            assert epoch == position // positions.per_epoch


def test_a_learner_of_one_process_gets_what_the_sampler_gave() -> None:
    """Not a slice of it: a slice of lhotse's CutSet is a list."""
    given = {"a": 1, "b": 2, "c": 3}
    assert WHOLE.of(given) is given


class Whole(Dataset[Any]):
    """Of whole minibatches."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> Any:
        return torch.full((4, 1), float(place))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_may_give_whole_minibatches(workers: int) -> None:
    loader = DataLoader(Whole(), batch_size=None, shuffle=True, num_workers=workers)
    model = torch.nn.Linear(1, 1)
    with unisono.Learner(model, sgd(model)) as learner:
        seen = [int(batch[0]) for batch in learner.draw(loader, epochs=2)]
    assert sorted(seen) == sorted([*range(10)] * 2)


def test_whole_minibatches_cannot_be_split_over_processes() -> None:
    source = as_source(DataLoader(Whole(), batch_size=None), None)
    batch = DataFeed(source, 1, 0, Slices(0, 2, split=False)).load(Minibatch(3))
    assert batch.tolist() == [[3.0]] * 4
    with pytest.raises(unisono.UserError, match="split minibatches by the indices") as caught:
        DataFeed(source, 1, 0, Slices(0, 2))
    assert "\n" not in str(caught.value)
