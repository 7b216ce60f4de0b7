"""Minibatches made from the user's data, in the order of the pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data._utils.pin_memory import pin_memory

from unisono.errors import UserError
from unisono.learner.arguments import whole_number
from unisono.learner.placement import Placement
from unisono.learner.planner import Minibatch
from unisono.learner.positions import DataOrder, Positions
from unisono.learner.sampled_positions import SampledPositions, check_undivided
from unisono.learner.slices import WHOLE, Slices
from unisono.learner.streams import Grouped, StreamedBatches, StreamPositions
from unisono.learner.workers import Workers, WorkerSettings
from unisono.text import counted

_log = logging.getLogger(__name__)


class Batches(Protocol):
    """Data that yields whole minibatches.

    Data that differs from epoch to epoch has ``epoch_batch(indices, epoch)`` as well, which is
    then asked in place of ``batch``.
    """

    def batch(self, indices: Any) -> Any:
        """The minibatch of these examples."""


class DatasetBatches:
    """A map-style dataset with a collate function."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate

    def batch(self, indices: Any) -> Any:
        """Fetches one example after the other, or all at once where the dataset can."""
        wanted = indices.tolist() if isinstance(indices, np.ndarray) else indices
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(wanted))
        return self._collate([self._dataset[i] for i in wanted])


class BatchedDataset:
    """A dataset of whole minibatches, as in a DataLoader with ``batch_size=None``."""

    def __init__(self, dataset: Any, convert: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._convert = convert

    def batch(self, indices: Any) -> Any:
        return self._convert(self._dataset[indices])


@dataclass(frozen=True)
class DataSource:
    """The user's data, and how minibatches are made of it."""

    batches: Batches
    order: Callable[[int, int], DataOrder]
    """What is at each position, for so many epochs and a seed."""
    shuffle: bool = True
    pin: bool = False
    """Whether minibatches are copied to pinned memory, for a GPU."""
    crew: WorkerSettings | None = None
    """DataLoader workers; None: the learner's own process loads the data."""


class DataFeed:
    """Loads minibatches, in this process or in workers, ``window`` minibatches ahead."""

    def __init__(self, source: DataSource, epochs: int, seed: int, slices: Slices = WHOLE) -> None:
        if slices.is_split and isinstance(source.batches, BatchedDataset | StreamedBatches):
            raise UserError(
                "the processes of a learner split minibatches by the indices of their examples, "
                "and this data has none: give draw() a dataset with __len__ and __getitem__, or a "
                "DataLoader of one with a batch_size or batch_sampler"
            )
        self.positions = source.order(epochs, seed)
        self._slices = slices
        self.fingerprint: str = getattr(source.batches, "fingerprint", "")
        """Of the data, where it has one."""
        self._batches = source.batches
        self._epoch_batch: Callable[[Any, int], Any] | None = getattr(
            source.batches, "epoch_batch", None
        )
        self._pin = source.pin and torch.cuda.is_available()
        self._workers: Workers | None = None
        if source.crew is not None:
            # What a dataset draws at random must differ from slice to slice.
            self._workers = Workers(source.crew, source.batches.batch, seed + (slices.rank << 32))

    @property
    def window(self) -> int:
        """How many minibatches ahead of its ``load`` each is to be announced."""
        return 0 if self._workers is None else self._workers.window

    def announce(self, minibatch: Minibatch) -> None:
        """Announces a minibatch that will be loaded after those announced before."""
        if self._workers is not None:
            position = minibatch.position
            self._workers.ask(position, self._slices.of(self.positions.indices(position)))

    def load(self, minibatch: Minibatch) -> Any:
        """The data of a minibatch that was announced."""
        data = self._fetch(minibatch.position) if self._workers is None else self._workers.take()
        return pin_memory(data) if self._pin else data  # type: ignore[no-untyped-call]

    def _fetch(self, position: int) -> Any:
        indices = self._slices.of(self.positions.indices(position))
        if self._epoch_batch is None:
            return self._batches.batch(indices)
        return self._epoch_batch(indices, self.positions.epoch(position))

    def count(self, minibatch: Minibatch) -> int:
        return self.positions.count(minibatch.position)

    def forget(self) -> None:
        """Drops what was announced, for a new incarnation of the learner."""
        if self._workers is not None:
            self._workers.forget()

    def stop(self) -> None:
        """Stops the workers, and wakes threads that wait for them."""
        if self._workers is not None:
            self._workers.stop()

    def close(self) -> None:
        """Waits until the workers have ended, after ``stop``."""
        if self._workers is not None:
            self._workers.join()
            self._workers = None
        if isinstance(self._batches, StreamedBatches):
            self._batches.close()


def make_feed(
    source: DataSource, epochs: int, seed: int, placement: Placement, slices: Slices = WHOLE
) -> DataFeed:
    """Makes the feed of a process of a learner; learner 0 warns if data are not shuffled.

    Raises:
        UserError: there are more learners than minibatches.
    """
    if not source.shuffle and placement.number == 0 and slices.rank == 0:
        _log.warning(
            "unisono: the DataLoader has shuffle=False: minibatches come in the dataset's order; "
            "give it shuffle=True to shuffle them anew each epoch"
        )
    feed = DataFeed(source, epochs, seed, slices)
    total = feed.positions.total
    if total < placement.learners:
        feed.stop()
        feed.close()
        minibatches = counted(total, "minibatch", "minibatches")
        raise UserError(
            f"{placement.learners} learners and only {minibatches}: use fewer learners or smaller "
            "minibatches"
        )
    return feed


def as_source(data: Any, batch_size: int | None, minibatches: int | None = None) -> DataSource:
    """Converts what the user gave to ``draw``; refuses what cannot be divided among learners."""
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, least=1)
    if minibatches is not None:
        minibatches = whole_number("minibatches", minibatches, least=1)
    loader = data if isinstance(data, DataLoader) else None
    if _is_stream(data if loader is None else loader.dataset):
        return _from_stream(data, batch_size, minibatches)
    if minibatches is not None:
        raise UserError("minibatches is for data without a length; this has one")
    if loader is not None:
        return _from_loader(loader, batch_size)
    if not hasattr(data, "__len__"):
        raise UserError(
            f"draw() takes a DataLoader, a dataset or an iterable, not {type(data).__name__}"
        )
    if batch_size is None:
        raise UserError("draw() needs batch_size with a dataset")
    order = partial(Positions, len(data), batch_size)
    return DataSource(
        data if hasattr(data, "batch") else DatasetBatches(data, default_collate), order
    )


def _is_stream(data: Any) -> bool:
    """Whether the data can only be iterated over from the beginning."""
    if isinstance(data, Iterator):
        raise UserError(
            f"draw() was given an iterator ({type(data).__name__}), which can be gone through "
            "once: give it what iter() makes one of, for each epoch and each learner"
        )
    return isinstance(data, IterableDataset) or (
        hasattr(data, "__iter__") and not hasattr(data, "__getitem__")
    )


def _from_stream(data: Any, batch_size: int | None, minibatches: int | None) -> DataSource:
    loader = data if isinstance(data, DataLoader) else None
    size = batch_size or (None if loader is None else loader.batch_size)
    if size is None:
        raise UserError("draw() needs batch_size, the examples of a minibatch, with this data")
    stream = Grouped(data, size, default_collate) if loader is None else data
    if minibatches is None:
        try:
            minibatches = len(data) if loader is not None else -(-len(data) // size)
        except TypeError:
            raise UserError(
                "the data has no length: tell draw() how many minibatches an epoch has, "
                "minibatches=N"
            ) from None
    order = partial(StreamPositions, minibatches, size)
    # A DataLoader of a stream has its workers, and pins, by itself.
    return DataSource(StreamedBatches(stream), order)


def _from_loader(loader: DataLoader[Any], batch_size: int | None) -> DataSource:
    assert loader.collate_fn is not None
    crew = None
    if loader.num_workers > 0:
        crew = WorkerSettings(
            dataset=loader.dataset,
            count=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 2,
            context=loader.multiprocessing_context,
            init=loader.worker_init_fn,
            timeout=loader.timeout,
        )
    sampler = loader.batch_sampler
    if type(sampler) is BatchSampler and _is_usual(sampler.sampler):
        return DataSource(
            DatasetBatches(loader.dataset, loader.collate_fn),
            partial(
                Positions,
                len(loader.dataset),  # type: ignore[arg-type]
                batch_size or sampler.batch_size,
                drop_last=sampler.drop_last,
                shuffle=type(sampler.sampler) is RandomSampler,
            ),
            shuffle=type(sampler.sampler) is RandomSampler,
            pin=loader.pin_memory,
            crew=crew,
        )
    chosen: Any = loader.sampler if sampler is None else sampler
    check_undivided(chosen)
    fetch = BatchedDataset if sampler is None else DatasetBatches
    return DataSource(
        fetch(loader.dataset, loader.collate_fn),
        lambda epochs, seed: SampledPositions(chosen, epochs, seed, batch_size),
        pin=loader.pin_memory,
        crew=crew,
    )


def _is_usual(sampler: Any) -> bool:
    """Whether it goes over the whole dataset once, in order or shuffled."""
    return type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
