"""A bounded queue between an activity that loads minibatches and the learner's thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from unisono.fabric import Cancelled, Fabric, TypedPort

T = TypeVar("T")


@dataclass(frozen=True)
class _Room:
    """There is room for one more."""


@dataclass(frozen=True)
class _Next:
    """An item."""

    item: Any


@dataclass(frozen=True)
class _End:
    """There are no more items, or there was an error."""

    error: Exception | None = None


_ROOM = _Room()
_FULL: TypedPort[_Next | _End] = TypedPort("prefetched")
_FREE: TypedPort[_Room] = TypedPort("prefetch-room")


class Prefetcher(Generic[T]):
    """Runs an iterator in an activity of its own, at most ``depth`` items ahead.

    The items and their order are those of the iterator; only the time is another. An exception in
    the iterator is raised in the learner's thread, after the items that came before it.
    """

    def __init__(self, fabric: Fabric, items: Iterator[T], depth: int) -> None:
        self._fabric = fabric
        self._items = items
        fabric.port(_FULL)
        fabric.port(_FREE)
        for _ in range(depth):
            fabric.post(_FREE, _ROOM)
        fabric.spawn("prefetch", self._make)

    def _make(self) -> None:
        try:
            for item in self._items:
                self._fabric.receive(_FREE)
                self._fabric.post(_FULL, _Next(item))
        except Cancelled:
            raise
        except Exception as error:
            self._fabric.post(_FULL, _End(error))
            return
        self._fabric.post(_FULL, _End())

    def __iter__(self) -> Iterator[T]:
        while True:
            message = self._fabric.receive(_FULL).body
            if isinstance(message, _End):
                if message.error is not None:
                    raise message.error
                return
            yield message.item
            self._fabric.post(_FREE, _ROOM)
