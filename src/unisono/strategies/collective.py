"""The weighted mean of everybody's vector, on plain send and receive.

Each of ``W`` members owns one of ``W`` slices. Everybody sends its part of a slice to the slice's
owner; the owner computes

    mean = sum_i (w_i / sum_j w_j) x_i

in the members' order, so that the result is the same at every member and in every run, and sends
it to all. Weights are normalised before they multiply: one member of any weight gets exactly its
own vector back. With all weights zero the mean is plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.fabric import Address, Fabric, Gone, Message, Vector

PORT = "collective"


class Aborted(Exception):  # noqa: N818
    """Another member has given this collective up."""


class Collective:
    """Collectives of one member, one after the other.

    ``tag`` is the number of a collective, and of the attempt at it.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._early: dict[Address, list[Message]] = {}
        fabric.port(PORT)

    def mean(
        self,
        members: Sequence[Address],
        tag: Sequence[int],
        vector: Vector,
        weight: float,
        note: Any,
        result: Vector,
    ) -> dict[Address, Any]:
        """Writes the weighted mean into ``result``; returns everybody's note."""
        try:
            return self._mean(list(members), list(tag), vector, weight, note, result)
        except (Gone, Aborted):
            self._abort(members, list(tag))
            raise

    def _mean(
        self,
        members: list[Address],
        tag: list[int],
        vector: Vector,
        weight: float,
        note: Any,
        result: Vector,
    ) -> dict[Address, Any]:
        me = self._fabric.address
        bounds = _bounds(len(vector), len(members))
        for place, member in enumerate(members):
            if member != me:
                body = {"tag": tag, "step": 0, "weight": weight, "note": note}
                self._fabric.send(member, PORT, body, vector.slice(*bounds[place]))
        parts = {m: self._next(m, tag, 0) for m in members if m != me}
        weights = {m: float(p.body["weight"]) for m, p in parts.items()} | {me: float(weight)}
        notes = {m: p.body["note"] for m, p in parts.items()} | {me: note}
        mine = bounds[members.index(me)]
        slices = {m: p.vector for m, p in parts.items()} | {me: vector.slice(*mine)}
        _weighted_sum(result.slice(*mine), [(weights[m], slices[m]) for m in members])
        for part in parts.values():
            part.release()
        for member in members:
            if member != me:
                self._fabric.send(member, PORT, {"tag": tag, "step": 1}, result.slice(*mine))
        for place, member in enumerate(members):
            if member != me:
                message = self._next(member, tag, 1)
                result.slice(*bounds[place]).assign(message.vector)
                message.release()
        return {m: notes[m] for m in members}

    def _next(self, member: Address, tag: list[int], step: int) -> Message:
        """The member's message of this attempt; older ones are dropped, newer ones kept."""
        while True:
            early = self._early.get(member)
            message = early.pop(0) if early else self._fabric.receive(PORT, member)
            if message.body["tag"] > tag:
                self._early.setdefault(member, []).insert(0, message)
                raise Aborted
            given_up = "abort" in message.body
            # One that gave an earlier collective up cannot come to this one before it has been
            # helped over that, perhaps by this very member.
            if given_up and (message.body["tag"] == tag or message.body["tag"][0] < tag[0]):
                raise Aborted
            if message.body["tag"] == tag and message.body["step"] == step:
                return message
            message.release()

    def _abort(self, members: Sequence[Address], tag: list[int]) -> None:
        """Wakes those who wait for this member; it will not go on."""
        for member in members:
            if member != self._fabric.address:
                try:
                    self._fabric.send(member, PORT, {"tag": tag, "abort": True})
                except Gone:
                    continue


def _bounds(count: int, parts: int) -> list[tuple[int, int]]:
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def _weighted_sum(result: Vector, terms: Sequence[tuple[float, Vector | None]]) -> None:
    total = sum(weight for weight, _ in terms)
    for place, (weight, vector) in enumerate(terms):
        share = weight / total if total > 0 else 1 / len(terms)
        if place == 0:
            result.assign(vector)
            result.scale(share)
        else:
            result.add(vector, share)
