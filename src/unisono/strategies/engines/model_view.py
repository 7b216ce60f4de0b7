"""Collects a parameter server's model from the holders of its shards."""

from __future__ import annotations

from contextlib import suppress

from unisono.fabric import Address, Fabric, Gone, Vector
from unisono.strategies.engines.server_messages import FINAL, PORT, SHOWN, Final, Show
from unisono.strategies.engines.shard_store import ShardStore
from unisono.strategies.engines.shards import bounds, runs


class ModelView:
    """All shards, for the learner's thread."""

    def __init__(self, fabric: Fabric, shard_store: ShardStore, shards: int) -> None:
        self._fabric = fabric
        self._shard_store = shard_store
        self._count = shards

    def collect(self) -> Vector:
        """The current model; its shards may be of different versions."""
        model = self._shard_store.model.copy()
        missing = set(range(self._count))
        while missing:
            view = self._fabric.members()
            for run, who in runs(missing, self._count, view.addresses()).items():
                try:
                    self._fabric.send(who, PORT, Show(run, view.version))
                    message = self._fabric.receive(SHOWN, who)
                except Gone:
                    continue
                if message.vector is not None:
                    model.slice(*bounds(run, self._count, len(model))).assign(message.vector)
                    missing -= set(range(*run))
                message.release()
        return model

    def agree(self, leader: Address | None) -> Vector:
        """The final model: the leader collects it when all are done, and sends it to all."""
        me = self._fabric.address
        while True:
            members = self._fabric.members().addresses()
            if leader is None or leader not in members:
                leader = members[0]
            if leader == me:
                return self._lead([member for member in members if member != me])
            try:
                self._fabric.send(leader, FINAL, Final())
                message = self._fabric.receive(FINAL, leader)
            except Gone:
                leader = None
                continue
            assert message.vector is not None
            final = message.vector.copy()
            message.release()
            return final

    def _lead(self, others: list[Address]) -> Vector:
        for member in others:
            with suppress(Gone):
                self._fabric.receive(FINAL, member)
        final = self.collect()
        for member in others:
            with suppress(Gone):
                self._fabric.send(member, FINAL, Final(), final)
        return final
