"""DataLoaders with samplers of their own: each of their minibatches is trained once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import unisono
from support.loops import (
    DYNAMIC_AVERAGING,
    EXAMPLES,
    SHARING,
    alone,
    dataset,
    loss_of,
    network,
    sgd,
    simulated,
)
from unisono.learner.sampled_positions import SampledPositions
from unisono.simulation import Kill, run_loops

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Backwards(Sampler[int]):
    """A sampler of a user's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(EXAMPLES - 1, -1, -1))

    def __len__(self) -> int:
        return EXAMPLES


class Buckets(Sampler[list[int]]):
    """A batch sampler with minibatches of different sizes, other ones in each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        sizes = [3, 9, 6] if self.epoch % 2 else [12, 4]
        start = turn = 0
        while start < EXAMPLES:
            size = sizes[turn % len(sizes)]
            yield order[start : start + size].tolist()
            start, turn = start + size, turn + 1


class Numbered:
    """The points, with their numbers."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> Any:
        return (*dataset()[place], place)


def loader_of(how: str, **more: Any) -> DataLoader[Any]:
    data: Any = Numbered()
    samplers: dict[str, Any] = {
        "backwards": lambda: {"batch_size": 8, "sampler": Backwards()},
        "subset": lambda: {"batch_size": 8, "sampler": SubsetRandomSampler(range(40))},
        "weighted": lambda: {
            "batch_size": 8,
            "sampler": WeightedRandomSampler([1.0 + i for i in range(EXAMPLES)], 60),
        },
        "replacement": lambda: {
            "batch_size": 8,
            "sampler": RandomSampler(data, replacement=True, num_samples=50),
        },
        "batches": lambda: {"batch_sampler": BatchSampler(Backwards(), 5, drop_last=True)},
        "buckets": lambda: {"batch_sampler": Buckets()},
    }
    return DataLoader(data, **samplers[how](), **more)


def trained(
    how: str, learners: int, strategy: Any, *, epochs: int = 3, faults: Any = (), **more: Any
) -> tuple[Counter[tuple[int, ...]], Any]:
    """The minibatches that learners drew, by the numbers of their examples."""
    seen: Counter[tuple[int, ...]] = Counter()

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), strategy, seed=7) as learner:
            for x, y, numbers in learner.draw(loader_of(how, **more), epochs=epochs):
                seen[tuple(numbers.tolist())] += 1
                learner.step(loss_of(model, (x, y)))

    if learners == 1:
        return seen, alone(loop).state
    return seen, run_loops(loop, learners=learners, faults=faults).state


SAMPLERS = ["backwards", "subset", "weighted", "replacement", "batches", "buckets"]


@pytest.mark.parametrize("how", SAMPLERS)
def test_every_number_of_learners_trains_the_same_minibatches(how: str) -> None:
    """Also where the sampler draws from the generators of the process."""
    first, state = trained(how, 1, "solo")
    assert state.pool.counts.committed == sum(first.values())
    for strategy in (SHARING["static"], DYNAMIC_AVERAGING):
        again, state = trained(how, 3, strategy)
        assert again == first
        assert state.pool.counts.committed == sum(first.values())


@pytest.mark.parametrize("strategy", SHARING)
def test_a_death_loses_no_minibatch_of_a_sampler(strategy: str) -> None:
    alone_, _ = trained("buckets", 1, "solo")
    seen, state = trained("buckets", 3, SHARING[strategy], faults=[Kill(5.2, 1)])
    assert state.pool.over and state.pool.counts.committed == sum(alone_.values())
    assert set(seen) == set(alone_)


def test_each_epoch_is_the_samplers_own() -> None:
    seen, _ = trained("buckets", 1, "solo", epochs=2)
    sampler = Buckets()
    wanted = list(sampler)
    sampler.set_epoch(1)
    wanted += list(sampler)
    assert seen == Counter(map(tuple, wanted))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_fetch_what_the_sampler_chose(context: str) -> None:
    seen, _ = trained("buckets", 1, "solo", num_workers=2, multiprocessing_context=context)
    assert seen == trained("buckets", 1, "solo")[0]


def test_examples_and_epochs_of_uneven_minibatches() -> None:
    positions = SampledPositions(Buckets(), 2, 0, None)
    sizes = [positions.count(p) for p in range(positions.total)]
    assert sum(sizes) == 2 * EXAMPLES and len(set(sizes)) > 3
    before = [positions.examples_before(p) for p in range(positions.total + 1)]
    assert before == [sum(sizes[:p]) for p in range(positions.total + 1)]
    epochs = [positions.epoch(p) for p in range(positions.total)]
    assert (
        epochs == sorted(epochs) and sum(s for s, e in zip(sizes, epochs, strict=True) if e) == 104
    )
    assert positions.batch_size == round(2 * EXAMPLES / positions.total)


def test_a_loop_over_epochs_has_the_samplers_epochs() -> None:
    seen: list[list[tuple[int, ...]]] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), "solo", epochs=3) as learner:
            loader = loader_of("buckets")
            for _ in range(3):
                seen.append([])
                for x, y, numbers in learner.draw(loader):
                    seen[-1].append(tuple(numbers.tolist()))
                    learner.step(loss_of(model, (x, y)))

    alone(loop)
    for epoch, found in enumerate(seen):
        sampler = Buckets()
        sampler.set_epoch(epoch)
        assert found == list(map(tuple, sampler))


class Cut:
    """An example that a sampler gives instead of its number, as lhotse's do."""

    def __init__(self, number: int) -> None:
        self.id = f"cut-{number}"
        self.number = number


class CutBatches(Buckets):
    """Gives minibatches of cuts; counts how often it was gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).passes += 1
        for numbers in super().__iter__():
            yield [Cut(number) for number in numbers]


class CutDataset:
    """Asked for a minibatch of cuts it gives tensors."""

    def __getitem__(self, cuts: list[Cut]) -> Any:
        numbers = torch.tensor([cut.number for cut in cuts])
        x, y = dataset().tensors
        return x[numbers], y[numbers], numbers


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_may_give_examples_instead_of_numbers(workers: int) -> None:
    """One epoch of them is held in memory: the sampler is gone through twice in each."""
    seen: Counter[tuple[int, ...]] = Counter()
    CutBatches.passes = 0

    def loop() -> None:
        model = network()
        data: Any = CutDataset()
        loader: Any = DataLoader(data, None, sampler=CutBatches(), num_workers=workers)
        with unisono.Learner(model, sgd(model), "solo") as learner:
            for x, y, numbers in learner.draw(loader, epochs=3):
                seen[tuple(numbers.tolist())] += 1
                learner.step(loss_of(model, (x, y)))

    alone(loop)
    assert seen == trained("buckets", 1, "solo")[0]
    assert CutBatches.passes == 6


class Restless(CutBatches):
    """Never the same twice."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[self.passes :])


def test_a_sampler_that_is_never_the_same_is_found() -> None:
    positions = SampledPositions(Restless(), 1, 0, None)
    with pytest.raises(unisono.UserError, match="seed it, so that an epoch is the same"):
        positions.indices(0)


class OfEachOwn(Backwards):
    """Not the same at all learners."""

    made = 0

    def __iter__(self) -> Iterator[int]:
        OfEachOwn.made += 1
        return iter(range(OfEachOwn.made, EXAMPLES))


def test_learners_whose_samplers_differ_are_refused() -> None:
    def loop() -> None:
        model = network()
        loader = DataLoader(dataset(), 8, sampler=OfEachOwn())
        with unisono.Learner(model, sgd(model), DYNAMIC_AVERAGING) as learner:
            for batch in learner.draw(loader):
                learner.step(loss_of(model, batch))

    ran = simulated(loop, 2, check=False)
    assert any("strategy, model or data" in str(error) for error in ran.errors.values())


class Sometimes(Buckets):
    """Gives nothing in the first epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        return super().__iter__() if self.epoch else iter(())


def test_an_epoch_may_be_empty() -> None:
    positions = SampledPositions(Sometimes(), 3, 0, None)
    assert {positions.epoch(p) for p in range(positions.total)} == {1, 2}
    indices = [i for p in range(positions.total) for i in positions.indices(p)]
    assert sorted(indices) == sorted([*range(EXAMPLES)] * 2)


def test_no_minibatches() -> None:
    with pytest.raises(unisono.UserError, match="the sampler gives no minibatches"):
        SampledPositions(BatchSampler(SequentialSampler([]), 4, False), 2, 0, None)


def test_generators_of_the_process_are_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    SampledPositions(BatchSampler(WeightedRandomSampler([1.0] * 9, 9), 2, False), 2, 0, None)
    assert torch.equal(torch.get_rng_state(), before)
