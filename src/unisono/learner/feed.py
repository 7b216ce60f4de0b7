"""Minibatches made from the user's data, in the order of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from unisono.events import UserError
from unisono.learner.plan import Minibatch
from unisono.pool.order import Order

_BLOCK = 64
"""Minibatches whose examples are looked up at a time."""


class Batches(Protocol):
    """Data that gives whole minibatches."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def batch(self, indices: NDArray[np.int64]) -> Any:
        """The examples of these numbers."""
        ...


class MapStyle:
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


class Feed:
    """Which examples a position holds, and their data.

    Position p is minibatch ``p mod M`` of epoch ``p div M``, with M minibatches an epoch, the last
    of which may be short. The examples of an epoch are in a keyed order of the whole corpus.
    """

    def __init__(self, batches: Batches, batch_size: int, epochs: int, seed: int) -> None:
        if len(batches) == 0:
            raise UserError("there are no examples to train on")
        if epochs < 1 or batch_size < 1:
            raise UserError(f"epochs ({epochs}) and batch size ({batch_size}) must be at least 1")
        self._batches = batches
        self.batch_size = batch_size
        self.examples_per_epoch = len(batches)
        self.minibatches_per_epoch = -(-len(batches) // batch_size)
        self.total = epochs * self.minibatches_per_epoch
        self._order = Order(len(batches), seed)
        self._block: tuple[int, int, NDArray[np.int64]] = (-1, 0, np.empty(0, np.int64))

    def epoch(self, position: int) -> int:
        """The epoch of a position."""
        return position // self.minibatches_per_epoch

    def count(self, minibatch: Minibatch) -> int:
        """How many examples it holds."""
        place = minibatch.position % self.minibatches_per_epoch
        return min(self.batch_size, self.examples_per_epoch - place * self.batch_size)

    def examples_before(self, position: int) -> int:
        """Examples of all positions before this one."""
        epoch, place = divmod(position, self.minibatches_per_epoch)
        return epoch * self.examples_per_epoch + place * self.batch_size

    def load(self, minibatch: Minibatch) -> Any:
        """The data of a minibatch."""
        return self._batches.batch(self._indices(minibatch))

    def _indices(self, minibatch: Minibatch) -> NDArray[np.int64]:
        epoch, place = divmod(minibatch.position, self.minibatches_per_epoch)
        start = place * self.batch_size
        stop = start + self.count(minibatch)
        known_epoch, first, examples = self._block
        if epoch != known_epoch or not first <= start < stop <= first + len(examples):
            first = start
            end = min(start + _BLOCK * self.batch_size, self.examples_per_epoch)
            examples = self._order.indices(epoch, first, end)
            self._block = (epoch, first, examples)
        return examples[start - first : stop - first]


def as_batches(source: Any, batch_size: int | None) -> tuple[Batches, int]:
    """The user's data as ``Batches``, and the minibatch size."""
    if isinstance(source, IterableDataset) or (
        isinstance(source, DataLoader) and isinstance(source.dataset, IterableDataset)
    ):
        raise UserError(
            "iterable datasets cannot be divided among learners: "
            "give draw() a map-style dataset (with __len__ and __getitem__)"
        )
    if isinstance(source, DataLoader):
        return _from_loader(source, batch_size)
    if not hasattr(source, "__len__"):
        raise UserError(f"draw() takes a DataLoader or a dataset, not {type(source).__name__}")
    if batch_size is None:
        raise UserError("draw() needs batch_size with a dataset")
    if hasattr(source, "batch"):
        return source, batch_size
    return MapStyle(source, default_collate), batch_size


def _from_loader(loader: DataLoader[Any], batch_size: int | None) -> tuple[Batches, int]:
    usual = isinstance(loader.sampler, (RandomSampler, SequentialSampler))
    if not usual or type(loader.batch_sampler) is not BatchSampler:
        raise UserError(
            "the order of the data is the pool's: give draw() a DataLoader without a sampler of "
            "its own, or the dataset"
        )
    size = batch_size or loader.batch_size
    assert size is not None and loader.collate_fn is not None
    return MapStyle(loader.dataset, loader.collate_fn), size
