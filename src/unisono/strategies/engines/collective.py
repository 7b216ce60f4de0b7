"""The weighted mean of everybody's vector, on plain send and receive.

Each of ``W`` members owns one of ``W`` slices. Everybody sends its part of a slice to the slice's
owner; the owner computes

    mean = sum_i (w_i / sum_j w_j) x_i

in the members' order, so that the result is the same at every member and in every run, and sends
it to all. Weights are normalised before they multiply: one member of any weight gets exactly its
own vector back. With all weights zero the mean is plain. A rule may change the weights when those
of all members are known (``unisono.strategies.selection``); every member applies it to the same.

In bfloat16, with r a vector that all members have in common and R the rounding,

    mean = r + R(sum_i (w_i / sum_j w_j) R(x_i - r))

which is the same at every member, too: who owns a slice rounds its own part and its result like all
others'. What is lost is small against what has changed since r, not against the vector itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from unisono.fabric import Address, Fabric, Gone, Message, Precision, TimedOut, TypedPort, Vector
from unisono.pool.ranges import Ranges
from unisono.strategies.selection import AllModels, Candidate, Selection

M = TypeVar("M")
EVERYBODY = AllModels()
Tag = tuple[int, int]
"""The number of a collective, and of the attempt at it."""


@dataclass(frozen=True)
class Part:
    """A member's part of a slice, for the slice's owner."""

    tag: Tag
    candidate: Candidate
    note: Ranges
    """The work in it."""


@dataclass(frozen=True)
class Mean:
    """The mean of a slice, from its owner."""

    tag: Tag


@dataclass(frozen=True)
class Abort:
    """The sender has given the collective up."""

    tag: Tag


CollectiveMessage = Part | Mean | Abort
PORT: TypedPort[CollectiveMessage] = TypedPort("collective", CollectiveMessage)


class Aborted(Exception):  # noqa: N818
    """Another member has given this collective up."""


@dataclass(frozen=True)
class Parts:
    """What went into a mean, by member."""

    notes: dict[Address, Ranges]
    left_out: frozenset[Address] = frozenset()
    """Who trained something, and got no weight."""


class Collective:
    """Collectives of one member, one after the other."""

    def __init__(self, fabric: Fabric, precision: Precision = Precision.FLOAT32) -> None:
        self._fabric = fabric
        self._precision = precision
        self._early: dict[Address, list[Message[CollectiveMessage]]] = {}
        fabric.port(PORT)

    def nbytes(self, vector: Vector) -> int:
        """Bytes of the vector on its way."""
        return len(vector) * vector.slice(0, 1).rounded(self._precision).nbytes

    def mean(
        self,
        members: Sequence[Address],
        tag: Tag,
        vector: Vector,
        candidate: Candidate,
        note: Ranges,
        result: Vector,
        selection: Selection = EVERYBODY,
        common: Vector | None = None,
    ) -> Parts:
        """Writes the weighted mean into ``result``; returns everybody's note.

        ``common`` is a vector that all members have, near theirs; without one it is zero.
        """
        coarse = self._precision is not Precision.FLOAT32
        if coarse and common is not None:
            change = vector.like()
            change.difference(vector, common)
            vector = change
        vector = vector.rounded(self._precision)
        try:
            own = Part(tag, candidate, note)
            parts = self._mean(list(members), own, vector, result, selection)
        except (Gone, Aborted):
            self._abort(members, tag)
            raise
        if coarse and common is not None:
            result.add(common)
        return parts

    def _mean(
        self,
        members: list[Address],
        own: Part,
        vector: Vector,
        result: Vector,
        selection: Selection,
    ) -> Parts:
        me = self._fabric.address
        bounds = _bounds(len(vector), len(members))
        for place, member in enumerate(members):
            if member != me:
                self._fabric.send(member, PORT, own, vector.slice(*bounds[place]))
        mine = bounds[members.index(me)]
        part = result.slice(*mine)
        parts = self._sum_up(members, own, vector.slice(*mine), part, selection)
        rounded = part.rounded(self._precision)
        if rounded is not part:
            part.assign(rounded)
        for member in members:
            if member != me:
                self._fabric.send(member, PORT, Mean(own.tag), rounded)
        for place, member in enumerate(members):
            if member != me:
                message = self._next(member, own.tag, Mean)
                result.slice(*bounds[place]).assign(message.vector)
                message.release()
        return parts

    def _sum_up(
        self,
        members: list[Address],
        own: Part,
        vector: Vector,
        result: Vector,
        selection: Selection,
    ) -> Parts:
        """The mean of everybody's part of this member's slice."""
        me = self._fabric.address
        parts: dict[Address, Message[Part]] = {}
        try:
            for member in members:
                if member != me:
                    parts[member] = self._next(member, own.tag, Part)
            said = {m: own if m == me else parts[m].body for m in members}
            candidates = [said[m].candidate for m in members]
            weights = selection.weights(candidates, own.tag[0])
            slices = [vector if m == me else parts[m].vector for m in members]
            _weighted_sum(result, list(zip(weights, slices, strict=True)))
            chosen = zip(members, candidates, weights, strict=True)
            left_out = {
                m for m, candidate, weight in chosen if candidate.examples > 0 and weight == 0
            }
            return Parts({m: said[m].note for m in members}, frozenset(left_out))
        finally:
            # Also what came of a collective that breaks: who sent it may need the credit.
            for part in parts.values():
                part.release()

    def _next(self, member: Address, tag: Tag, kind: type[M]) -> Message[M]:
        """The member's message of this attempt; older ones are dropped, newer ones kept."""
        while True:
            early = self._early.get(member)
            message = early.pop(0) if early else self._fabric.receive(PORT, member)
            of = message.body.tag
            if of > tag:
                self._early.setdefault(member, []).insert(0, message)
                raise Aborted
            if isinstance(message.body, Abort):
                if of == tag:
                    raise Aborted
                # Who gave up an earlier collective, and has not been heard of since, waits to be
                # helped over that, perhaps by this very member.
                if of[0] < tag[0] and not (self._early.get(member) or self._hear(member)):
                    raise Aborted
            elif of == tag and isinstance(message.body, kind):
                return cast("Message[M]", message)
            message.release()

    def _hear(self, member: Address) -> bool:
        """Takes in one more message of the member, if there is one already."""
        try:
            message = self._fabric.receive(PORT, member, timeout=0.0)
        except (TimedOut, Gone):
            return False
        self._early.setdefault(member, []).append(message)
        return True

    def _abort(self, members: Sequence[Address], tag: Tag) -> None:
        """Wakes those who wait for this member, and makes room for the next attempt.

        What the others sent for this one is dropped now: if it stayed, a few attempts in a row
        would use up their credit, and they would wait here instead of standing by.
        """
        others = [m for m in members if m != self._fabric.address]
        for member in others:
            try:
                self._fabric.send(member, PORT, Abort(tag))
            except Gone:
                continue
        for member in others:
            while self._hear(member):
                if self._early[member][-1].body.tag <= tag:
                    self._early[member].pop().release()


def _bounds(count: int, parts: int) -> list[tuple[int, int]]:
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def _weighted_sum(result: Vector, round_plan: Sequence[tuple[float, Vector | None]]) -> None:
    total = sum(weight for weight, _ in round_plan)
    for place, (weight, vector) in enumerate(round_plan):
        share = weight / total if total > 0 else 1 / len(round_plan)
        if place == 0:
            result.assign(vector)
            result.scale(share)
        else:
            result.add(vector, share)
