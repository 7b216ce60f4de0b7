"""What a member of a server knows of the work of those who are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unisono.coordinator.client import Client
from unisono.coordinator.messages import Closed
from unisono.fabric import Address
from unisono.pool.ranges import Ranges
from unisono.strategies.engines.shard_store import ShardStore


class Witness:
    """Tells of the last work of the gone that is in the model as this member knows it.

    Who is to hold more shards waits until it has the newest of them. With the last message of one
    may have come work of others who were gone before. The model keeps a note of all this until the
    coordinator knows of it: this member may not live to tell.
    """

    def __init__(
        self,
        client: Client,
        shard_store: ShardStore,
        tell_committed: Callable[[Address, Ranges], int],
    ) -> None:
        self._client = client
        self._shard_store = shard_store
        self._tell_committed = tell_committed
        self._unclosed: list[Address] = []
        self._told: list[tuple[int, Address, Ranges]] = []
        self.gone: set[Address] = set()
        """All who are known to be gone."""

    def add(self, gone: Iterable[Address]) -> None:
        """These have gone, and their last message is here."""
        self._unclosed += gone
        self.gone.update(self._unclosed)

    def tell(self) -> None:
        """Tells what can be told by now."""
        told, self._told = self._told, []
        for sequence, gone, note in told:
            if self._client.is_pending(sequence):
                self._told.append((sequence, gone, note))
            else:
                self._shard_store.forget(gone, note)
        while self._shard_store.complete and self._unclosed:
            for gone in sorted(self.gone):
                note = self._shard_store.work_of(gone)
                if note:
                    self._told.append((self._tell_committed(gone, note), gone, note))
            self._client.tell(Closed(self._unclosed.pop()))
