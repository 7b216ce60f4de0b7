"""Positions whose minibatches come from the user's sampler."""

from __future__ import annotations

import random
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unisono.errors import UserError


class SampledPositions:
    """The minibatches of a sampler, numbered through all epochs.

    Every learner goes through the sampler by itself, before the training, and must find the same:
    ``set_epoch`` is called where there is one, and the generators of torch, numpy and Python are
    seeded with the run's seed and the epoch. Minibatches of numbers are kept. Of others, as the
    cuts of lhotse, only the sizes are: the sampler is gone through once more in each epoch.
    """

    def __init__(self, sampler: Any, epochs: int, seed: int, batch_size: int | None) -> None:
        if epochs < 1:
            raise UserError(f"epochs ({epochs}) must be at least 1")
        self._sampler = sampler
        self._seed = seed
        self._numbers: dict[int, list[NDArray[np.int64]]] = {}
        """Minibatches of numbers, by epoch."""
        self._others: tuple[int, list[Any]] = (-1, [])
        """Other minibatches: an epoch's."""
        sizes: list[int] = []
        starts = [0]
        checksum = 0
        for epoch in range(epochs):
            with _seeded(seed, epoch):
                minibatches = self._sample(epoch)
            sizes += [size_of(minibatch) for minibatch in minibatches]
            starts.append(len(sizes))
            for minibatch in minibatches:
                checksum = zlib.crc32(_text_of(minibatch), checksum)
            if all(_is_plain(minibatch) for minibatch in minibatches):
                self._numbers[epoch] = [np.asarray(minibatch) for minibatch in minibatches]
        if not sizes:
            raise UserError("there are no examples to train on: the sampler gives no minibatches")
        self._starts = starts
        self._examples = [0, *accumulate(sizes)] if batch_size is None else []
        self.batch_size = batch_size or max(1, round(sum(sizes) / len(sizes)))
        """Examples of a minibatch, on average."""
        self.total = len(sizes)
        self.per_epoch = max(1, self.total // epochs)
        """Minibatches an epoch, on average."""
        self._checksum = checksum

    def describe(self) -> str:
        sampler = type(self._sampler).__name__
        return f"{self.total} minibatches of {sampler}, checksum {self._checksum:08x}"

    def epoch(self, position: int) -> int:
        return min(bisect_right(self._starts, position), len(self._starts) - 1) - 1

    def count(self, position: int) -> int:
        return self.examples_before(position + 1) - self.examples_before(position)

    def examples_before(self, position: int) -> int:
        return self._examples[position] if self._examples else position * self.batch_size

    def indices(self, position: int) -> Any:
        epoch = self.epoch(position)
        place = position - self._starts[epoch]
        if epoch in self._numbers:
            return self._numbers[epoch][place].tolist()
        if self._others[0] != epoch:
            self._others = (epoch, self._sample(epoch))
            found, expected = len(self._others[1]), self._starts[epoch + 1] - self._starts[epoch]
            if found != expected:
                raise UserError(
                    f"the sampler gave {expected} minibatches for epoch {epoch} at first, and now "
                    f"{found}: seed it, so that an epoch is the same each time"
                )
        return self._others[1][place]

    def _sample(self, epoch: int) -> list[Any]:
        set_epoch(self._sampler, epoch)
        return list(self._sampler)


def set_epoch(source: Any, epoch: int) -> None:
    """Calls ``set_epoch`` of a loader and its parts, where they have it."""
    for name in ("", "batch_sampler", "sampler", "dataset"):
        part = getattr(source, name, None) if name else source
        tell = getattr(part, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def check_undivided(sampler: Any) -> None:
    """Refuses a sampler that yields a part of the data, such as DistributedSampler."""
    for part in (sampler, getattr(sampler, "sampler", None)):
        parts = getattr(part, "num_replicas", None) or getattr(part, "world_size", None) or 1
        if parts > 1:
            raise UserError(
                f"{type(part).__name__} gives one of {parts} parts of the data, and the run "
                "divides it once more: make the sampler for one process (num_replicas=1, "
                "world_size=1)"
            )


def size_of(minibatch: Any) -> int:
    """How many examples a sampler's item stands for."""
    return len(minibatch) if isinstance(minibatch, Sized) else 1


def _is_plain(minibatch: Any) -> bool:
    """Whether it is an index, or several."""
    if isinstance(minibatch, Sequence):
        return all(isinstance(index, int) for index in minibatch)
    return isinstance(minibatch, int | np.ndarray)


def _text_of(minibatch: Any) -> bytes:
    """What learners compare: indices, the ids of cuts, or how many there are."""
    if _is_plain(minibatch):
        return repr(minibatch).encode()
    ids: list[Any] = []
    if isinstance(minibatch, Iterable):
        ids = [getattr(example, "id", "") for example in minibatch]
    return repr((size_of(minibatch), ids)).encode()


@contextmanager
def _seeded(seed: int, epoch: int) -> Iterator[None]:
    """A context in which all random generators are seeded; restores them afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    words = np.random.SeedSequence([seed, epoch]).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.default_generator.manual_seed(int(words[2]))
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
