"""Data that can only be gone through: each minibatch once, whoever dies; no wait at its end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import unisono
from support.loops import DYNAMIC_AVERAGING, SHARING, alone, dataset, loss_of, network, sgd, threads
from unisono.learner.data_feed import as_source
from unisono.learner.streams import Grouped, StreamedBatches
from unisono.simulation import Kill, KillCoordinator, Pause, run_loops

EXAMPLES, BATCH, MINIBATCHES = 104, 8, 13
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Points(IterableDataset[Any]):
    """The points with their numbers, in an order that depends on the epoch."""

    def __init__(self, examples: int = EXAMPLES) -> None:
        self.examples = examples
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(self.examples, generator=torch.Generator().manual_seed(self.epoch))
        info = get_worker_info()
        mine = order if info is None else order[info.id :: info.num_workers]
        for number in mine.tolist():
            yield (*dataset()[number % EXAMPLES], number)


class Sized(Points):
    """The same, with a length."""

    def __len__(self) -> int:
        return self.examples


class Plain:
    """An iterable that is no dataset of torch's."""

    def __iter__(self) -> Iterator[Any]:
        return ((*dataset()[number], number) for number in range(EXAMPLES))


class Seekable(Plain):
    """As ``datasets.IterableDataset`` it can begin later."""

    def __init__(self) -> None:
        self.read = 0
        self.skipped: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        return self._from(0)

    def skip(self, examples: int) -> Iterator[Any]:
        self.skipped.append(examples)
        return self._from(examples)

    def _from(self, first: int) -> Iterator[Any]:
        for number in range(first, EXAMPLES):
            self.read += 1
            yield (*dataset()[number], number)


def draw_all(
    source: Any, seen: Counter[int], strategy: Any = "solo", *, epochs: int = 1, **how: Any
) -> None:
    model = network()
    with unisono.Learner(model, sgd(model), strategy) as learner:
        for x, y, numbers in learner.draw(source, epochs=epochs, **how):
            assert learner._progress is not None and learner._progress.current is not None
            if not learner._progress.current.stand_in:  # to keep step, with weight 0
                seen.update(numbers.tolist())
            learner.step(loss_of(model, (x, y)))


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (lambda: Points(), {"batch_size": BATCH, "minibatches": MINIBATCHES}),
        (lambda: Sized(), {"batch_size": BATCH}),
        (lambda: Plain(), {"batch_size": BATCH, "minibatches": MINIBATCHES}),
        (lambda: Seekable(), {"batch_size": BATCH, "minibatches": MINIBATCHES}),
        (lambda: DataLoader(Points(), BATCH), {"minibatches": MINIBATCHES}),
        (lambda: DataLoader(Sized(), BATCH), {}),
        (lambda: DataLoader(Sized(), BATCH, num_workers=2), {"minibatches": 14}),
    ],
)
@pytest.mark.parametrize("learners", [1, 3])
def test_every_example_is_trained_once_an_epoch(make: Any, how: Any, learners: int) -> None:
    seen: Counter[int] = Counter()

    def loop() -> None:
        strategy = "solo" if learners == 1 else DYNAMIC_AVERAGING
        draw_all(make(), seen, strategy, epochs=2, **how)

    if learners == 1:
        alone(loop)
    else:
        run_loops(loop, learners=learners)
    assert seen == Counter(dict.fromkeys(range(EXAMPLES), 2))


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize(
    "faults",
    [
        [Kill(3.3, 1)],
        [Kill(2.2, 0), Pause(4.1, 2, 9.0)],
        [Kill(6.4, 2), KillCoordinator(7.7)],
        [Kill(1.1, 0), Kill(9.3, 1)],
    ],
)
def test_a_death_loses_nothing_of_a_stream(strategy: str, faults: list[Any]) -> None:
    seen: Counter[int] = Counter()

    def loop() -> None:
        draw_all(Sized(), seen, SHARING[strategy], epochs=3, batch_size=BATCH)

    run = run_loops(loop, learners=3, faults=faults, check=False)
    assert all(type(error).__name__ == "CoordinatorLost" for error in run.errors.values())
    counts = run.state.pool.counts
    assert run.state.pool.over and counts.committed == 3 * MINIBATCHES
    assert set(seen) == set(range(EXAMPLES)) and min(seen.values()) >= 3


@pytest.mark.parametrize("strategy", SHARING)
def test_a_stream_that_ends_too_early_begins_again(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The learners never see the same end, and nobody waits."""
    seen: Counter[int] = Counter()

    def loop() -> None:
        how = {"batch_size": BATCH, "minibatches": 2 * MINIBATCHES}
        draw_all(Points(), seen, SHARING[strategy], epochs=2, **how)

    with caplog.at_level(logging.WARNING):
        run = run_loops(loop, learners=3)
    assert run.state.pool.counts.committed == 4 * MINIBATCHES
    assert seen == Counter(dict.fromkeys(range(EXAMPLES), 4))
    assert "ended before minibatch 13: it begins again" in caplog.text


def test_of_a_stream_that_is_longer_the_rest_is_left_out() -> None:
    seen: Counter[int] = Counter()
    alone(lambda: draw_all(Plain(), seen, batch_size=BATCH, minibatches=5, epochs=2))
    assert seen == Counter(dict.fromkeys(range(5 * BATCH), 2))


@pytest.mark.parametrize("strategy", ["allreduce", DYNAMIC_AVERAGING])
def test_streams_on_threads(strategy: Any) -> None:
    seen: Counter[int] = Counter()
    ran = threads(lambda: draw_all(Sized(), seen, strategy, epochs=2, batch_size=BATCH), 3)
    assert ran.counts.committed == 2 * MINIBATCHES
    assert seen == Counter(dict.fromkeys(range(EXAMPLES), 2))


def test_a_place_before_is_found_again_and_a_seekable_stream_reads_only_it() -> None:
    stream = Seekable()
    batches = StreamedBatches(Grouped(stream, BATCH, lambda group: [e[2] for e in group]))
    for place in (4, 5, 2, 9):
        assert batches.batch((0, place)) == list(range(place * BATCH, (place + 1) * BATCH))
    assert stream.skipped == [32, 16]
    assert stream.read == (2 + 8) * BATCH


class Empty:
    """Nothing."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_an_empty_stream_is_one_line() -> None:
    with pytest.raises(unisono.UserError, match="no examples to train on") as caught:
        alone(lambda: draw_all(Empty(), Counter(), batch_size=BATCH, minibatches=3))
    assert "\n" not in str(caught.value)


def test_minibatches_is_for_what_has_no_length() -> None:
    with pytest.raises(unisono.UserError, match="minibatches is for data without a length"):
        as_source(dataset(), 4, 3)
