"""Minibatches made from the user's data, in the order of the pool."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
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
from unisono.learner.placement import Placement
from unisono.learner.planner import Minibatch
from unisono.learner.positions import Positions
from unisono.learner.workers import Workers, WorkerSettings
from unisono.text import counted

_log = logging.getLogger(__name__)


class Batches(Protocol):
    """Data that gives whole minibatches."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def batch(self, indices: NDArray[np.int64]) -> Any:
        """The examples of these numbers."""
        ...


class MapStyleBatches:
    """A map-style dataset with its collate function, as ``Batches``."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: NDArray[np.int64]) -> Any:
        """Fetches one example after the other, or all at once where the dataset can."""
        wanted = indices.tolist()
        if hasattr(self._dataset, "__getitems__"):
            return self._collate(self._dataset.__getitems__(wanted))
        return self._collate([self._dataset[i] for i in wanted])


@dataclass(frozen=True)
class DataSource:
    """The user's data, and how it is to be cut and fetched."""

    batches: Batches
    batch_size: int
    drop_last: bool = False
    shuffle: bool = True
    pin: bool = False
    """Whether minibatches are copied to pinned memory, for a GPU."""
    crew: WorkerSettings | None = None
    """Workers that fetch; None: the learner's own process does."""


class BatchMaker:
    """Makes the data of a position; it can travel to a worker."""

    def __init__(self, batches: Batches, positions: Positions) -> None:
        self._batches = batches
        self._positions = positions

    def __call__(self, position: int) -> Any:
        """The minibatch."""
        return self._batches.batch(self._positions.indices(position))


class DataFeed:
    """The data of minibatches, fetched here or by workers that are asked ``window`` ahead."""

    def __init__(self, source: DataSource, epochs: int, seed: int) -> None:
        self.positions = Positions(
            len(source.batches),
            source.batch_size,
            epochs,
            seed,
            drop_last=source.drop_last,
            shuffle=source.shuffle,
        )
        self.fingerprint: str = getattr(source.batches, "fingerprint", "")
        """Of the data, where it has one."""
        self._make = BatchMaker(source.batches, self.positions)
        self._pin = source.pin and torch.cuda.is_available()
        self._workers: Workers | None = None
        if source.crew is not None:
            self._workers = Workers(source.crew, self._make, seed)

    @property
    def window(self) -> int:
        """How many minibatches ahead of its ``load`` each is to be announced."""
        return 0 if self._workers is None else self._workers.window

    def announce(self, minibatch: Minibatch) -> None:
        """This one will be loaded soon, after those that were announced before."""
        if self._workers is not None:
            self._workers.ask(minibatch.position)

    def load(self, minibatch: Minibatch) -> Any:
        """The data of a minibatch that was announced."""
        workers = self._workers
        data = self._make(minibatch.position) if workers is None else workers.take()
        return pin_memory(data) if self._pin else data  # type: ignore[no-untyped-call]

    def count(self, minibatch: Minibatch) -> int:
        """How many examples it holds."""
        return self.positions.count(minibatch.position)

    def forget(self) -> None:
        """What was announced will not be loaded: the learner begins a new life."""
        if self._workers is not None:
            self._workers.forget()

    def stop(self) -> None:
        """Lets the workers end; whoever waits for them is woken."""
        if self._workers is not None:
            self._workers.stop()

    def close(self) -> None:
        """Waits until the workers have ended, after ``stop``."""
        if self._workers is not None:
            self._workers.join()
            self._workers = None


def make_feed(source: DataSource, epochs: int, seed: int, placement: Placement) -> DataFeed:
    """The feed of one learner; learner 0 says what deserves a word.

    Raises:
        UserError: there are more learners than minibatches.
    """
    if not source.shuffle and placement.number == 0:
        _log.warning(
            "unisono: the DataLoader has shuffle=False: minibatches come in the dataset's order; "
            "give it shuffle=True to shuffle them anew each epoch"
        )
    feed = DataFeed(source, epochs, seed)
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


def as_source(data: Any, batch_size: int | None) -> DataSource:
    """What the user gave to ``draw``; what cannot be divided among learners is refused."""
    if isinstance(data, IterableDataset) or (
        isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset)
    ):
        raise UserError(
            "iterable datasets cannot be divided among learners: "
            "give draw() a map-style dataset (with __len__ and __getitem__)"
        )
    if isinstance(data, DataLoader):
        return _from_loader(data, batch_size)
    if not hasattr(data, "__len__"):
        raise UserError(f"draw() takes a DataLoader or a dataset, not {type(data).__name__}")
    if batch_size is None:
        raise UserError("draw() needs batch_size with a dataset")
    if hasattr(data, "batch"):
        return DataSource(data, batch_size)
    return DataSource(MapStyleBatches(data, default_collate), batch_size)


def _from_loader(loader: DataLoader[Any], batch_size: int | None) -> DataSource:
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler or not _is_usual(batches.sampler):
        raise UserError(
            "the order of the data is the pool's: give draw() a DataLoader without a sampler of "
            "its own (shuffle=True or False), or the dataset"
        )
    shuffle = type(batches.sampler) is RandomSampler
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
    return DataSource(
        batches=MapStyleBatches(loader.dataset, loader.collate_fn),
        batch_size=batch_size or batches.batch_size,
        drop_last=batches.drop_last,
        shuffle=shuffle,
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
