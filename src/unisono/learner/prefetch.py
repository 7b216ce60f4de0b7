"""A bounded queue between an activity that makes things ahead and the learner's thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from unisono.fabric import Cancelled, Fabric

T = TypeVar("T")
_FULL = "prefetched"
_FREE = "prefetch-room"


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
            fabric.post(_FREE, {})
        fabric.spawn("prefetch", self._make)

    def _make(self) -> None:
        try:
            for item in self._items:
                self._fabric.receive(_FREE)
                self._fabric.post(_FULL, {"item": item})
        except Cancelled:
            raise
        except Exception as error:
            self._fabric.post(_FULL, {"error": error})
            return
        self._fabric.post(_FULL, {})

    def __iter__(self) -> Iterator[T]:
        while True:
            body = self._fabric.receive(_FULL).body
            if "error" in body:
                raise body["error"]
            if "item" not in body:
                return
            yield body["item"]
            self._fabric.post(_FREE, {})
