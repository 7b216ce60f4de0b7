"""The mean of all learners' models, for strategies without a common model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from unisono.fabric import Address, Fabric, Gone, TypedPort, Vector


@dataclass(frozen=True)
class ShowModel:
    """Asks for a learner's model, to average it."""


@dataclass(frozen=True)
class ModelShown:
    """A learner's model, or none if it has none yet; at the end, the mean of all."""


SHOWN: TypedPort[ModelShown] = TypedPort("shown", ModelShown)
FINAL: TypedPort[ModelShown] = TypedPort("final", ModelShown)


class ModelGather:
    """Collects models at one learner; nobody's computing waits for it.

    The mean of n models and their distance from it, with one vector beside the model that has just
    come: with d = x - m, for the k-th model,

        m <- m + d / k        s <- s + |d|^2 (k - 1) / k

    so that s = sum_i |x_i - m|^2 at the end; the distance is sqrt(s / n).
    """

    def __init__(self, fabric: Fabric, port: str) -> None:
        self._fabric = fabric
        self._port = port
        self.final: Vector | None = None
        """The mean with which all learners ended."""
        fabric.port(SHOWN)
        fabric.port(FINAL)

    def mean(self, own: Vector) -> tuple[Vector, int, float]:
        """The current mean of all models, how many there are, and their distance from it."""
        asked = []
        for member in self._others():
            try:
                self._fabric.send(member, self._port, ShowModel())
                asked.append(member)
            except Gone:
                continue
        return self._collect(own, asked, SHOWN)

    def show(self, to: Address, model: Vector | None) -> None:
        """Answers ``ShowModel``; without a model if this learner has none yet."""
        self._fabric.send(to, SHOWN, ModelShown(), model)

    def finish(self, leader: Address | None, own: Vector) -> Vector:
        """The mean of all final models, the same at each learner: the leader collects and sends it.

        If the leader dies, the lowest remaining address collects once more.
        """
        while True:
            others = self._others()
            me = self._fabric.address
            if leader is None or not (leader == me or leader in others):
                leader = min([me, *others])
            if leader == me:
                self.final, _, _ = self._collect(own, others, FINAL)
                for member in others:
                    with suppress(Gone):
                        self._fabric.send(member, FINAL, ModelShown(), self.final)
                return self.final
            try:
                self._fabric.send(leader, FINAL, ModelShown(), own)
                message = self._fabric.receive(FINAL, leader)
            except Gone:
                leader = None
                continue
            assert message.vector is not None
            self.final = message.vector.copy()
            message.release()
            return self.final

    def _others(self) -> list[Address]:
        return [a for a in self._fabric.members().addresses() if a != self._fabric.address]

    def _collect(
        self, own: Vector, members: list[Address], port: TypedPort[ModelShown]
    ) -> tuple[Vector, int, float]:
        mean, spare = own.copy(), own.like()
        count, squares = 1, 0.0
        for member in members:
            try:
                message = self._fabric.receive(port, member)
            except Gone:
                continue
            if message.vector is not None:
                count += 1
                spare.difference(message.vector, mean)
                mean.add(spare, 1 / count)
                squares += spare.norm() ** 2 * (count - 1) / count
            message.release()
        return mean, count, math.sqrt(squares / count)
