"""The weighted mean of everybody's vector, on plain send and receive.

Each of ``W`` members owns one of ``W`` slices. Everybody sends its part of a slice to the slice's
owner; the owner computes

    mean = sum_i (w_i / sum_j w_j) x_i

in the members' order, so that the result is the same at every member and in every run, and sends
it to all. Weights are normalised before they multiply: one member of any weight gets exactly its
own vector back. With all weights zero the mean is plain. A rule may change the weights when those
of all members are known (``unisono.strategies.selection``); every member applies it alike.

In fewer bits, with r a vector that all members share, Q the rounding, and residuals e_i of member i
and f of the slice's owner (``error_feedback``),

    mean = r + Q(f + sum_i (w_i / sum_j w_j) Q(x_i - r + e_i))

which is the same at every member, too: the owner uses the rounded mean as well. Its own part is not
sent, and not rounded. The rounding error is relative to the change since r, not to the vector
itself, and is added in the next round. A single member sends and rounds nothing.

In *fragments* this is done for one part of the vector after the other, with the same contributions
and weights, so that at most one fragment is in transit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from unisono.fabric import (
    Address,
    Fabric,
    Gone,
    Message,
    Precision,
    TimedOut,
    TypedPort,
    Vector,
    encoded_nbytes,
)
from unisono.pool.ranges import Ranges
from unisono.strategies.engines.error_feedback import Bounds, Residuals, send_off
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
    """The sender has aborted the collective."""

    tag: Tag


CollectiveMessage = Part | Mean | Abort
PORT: TypedPort[CollectiveMessage] = TypedPort("collective", CollectiveMessage)


class Aborted(Exception):  # noqa: N818
    """Another member has aborted this collective."""


@dataclass(frozen=True)
class Parts:
    """The contributions to a mean, by member."""

    notes: dict[Address, Ranges]
    left_out: frozenset[Address] = frozenset()
    """Members that trained something, and got no weight."""


class Collective:
    """Collectives of one member, one after the other."""

    def __init__(self, fabric: Fabric, precision: Precision = Precision.FLOAT32) -> None:
        self._fabric = fabric
        self._precision = precision
        self._early: dict[Address, list[Message[CollectiveMessage]]] = {}
        self.residuals = Residuals()
        """Of the rounds that are complete."""
        self._left: Residuals | None = None
        """Of the last attempt, if it rounded anything."""
        fabric.port(PORT)

    def nbytes(self, vector: Vector) -> int:
        """Bytes of the vector as it is sent."""
        return encoded_nbytes(vector, self._precision)

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
        fragments: int = 1,
        between: Callable[[Bounds], None] | None = None,
    ) -> Parts:
        """Writes the weighted mean into ``result``; returns everybody's note.

        ``common`` is a vector that all members share, near theirs; None: zero. ``settle`` must be
        called when the round is complete, before the next one. ``between`` is called after each
        fragment but the last with its bounds, when ``result`` has its mean.
        """
        self._left = None
        precision = self._precision if len(members) > 1 else Precision.FLOAT32
        if precision is Precision.FLOAT32:
            common = None
        total = self._total(vector, common, in_place=precision is Precision.FLOAT32)
        try:
            own = Part(tag, candidate, note)
            for place, bounds in enumerate(_bounds((0, len(vector)), fragments)):
                parts = self._mean(list(members), own, total, result, bounds, selection, precision)
                if common is not None:
                    result.slice(*bounds).add(common.slice(*bounds))
                if between is not None and place < fragments - 1:
                    between(bounds)
        except (Gone, Aborted):
            self._abort(members, tag)
            raise
        return parts

    def settle(self, result: Vector, *, counted: bool) -> None:
        """Updates the residuals after a complete round.

        ``counted`` says whether this member's vector has a weight in the result. A result that is
        not finite is used by nobody, and leaves them as they were.
        """
        left, self._left = self._left, None
        if left is not None and result.finite():
            self.residuals = left if counted else replace(left, own=self.residuals.own)

    def _total(self, vector: Vector, common: Vector | None, *, in_place: bool) -> Vector:
        """The vector to send: the change since ``common``, plus the residual."""
        unsent = self.residuals.own
        if in_place and unsent is None:
            return vector
        total = vector.copy()
        if common is not None:
            total.add(common, -1.0)
        if unsent is not None:
            total.add(unsent)
        return total

    def _mean(
        self,
        members: list[Address],
        own: Part,
        total: Vector,
        result: Vector,
        fragment: Bounds,
        selection: Selection,
        precision: Precision,
    ) -> Parts:
        """The mean of one fragment."""
        me = self._fabric.address
        bounds = _bounds(fragment, len(members))
        exact = precision is Precision.FLOAT32
        for place, member in enumerate(members):
            if member != me:
                part = total.slice(*bounds[place])
                coded = part if exact else send_off(part, precision)
                self._fabric.send(member, PORT, own, coded)
        mine = bounds[members.index(me)]
        mean = result.slice(*mine)
        parts = self._sum_up(members, own, total.slice(*mine), mean, selection, precision)
        coded = mean
        if not exact:
            total.slice(*mine).scale(0.0)
            coded, residual = self._round_off(mean, mine, precision)
            means = {} if self._left is None else self._left.means
            self._left = Residuals(total, {**means, mine: residual})
        elif self.residuals.own is not None:
            self._left = Residuals()
        for member in members:
            if member != me:
                self._fabric.send(member, PORT, Mean(own.tag), coded)
        for place, member in enumerate(members):
            if member != me:
                message = self._next(member, own.tag, Mean)
                part = result.slice(*bounds[place])
                part.assign(_vector_of(message).decoded(precision, part))
                message.release()
        return parts

    def _round_off(
        self, mean: Vector, bounds: Bounds, precision: Precision
    ) -> tuple[Vector, Vector]:
        """Rounds the mean of a slice; returns its encoding and the residual."""
        residual = mean.copy()
        if bounds in self.residuals.means:
            residual.add(self.residuals.means[bounds])
        coded = send_off(residual, precision)
        mean.assign(coded.decoded(precision, mean))
        return coded, residual

    def _sum_up(
        self,
        members: list[Address],
        own: Part,
        vector: Vector,
        result: Vector,
        selection: Selection,
        precision: Precision,
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
            slices = [
                vector if m == me else _vector_of(parts[m]).decoded(precision, vector)
                for m in members
            ]
            _weighted_sum(result, list(zip(weights, slices, strict=True)))
            chosen = zip(members, candidates, weights, strict=True)
            left_out = {
                m for m, candidate, weight in chosen if candidate.examples > 0 and weight == 0
            }
            return Parts({m: said[m].note for m in members}, frozenset(left_out))
        finally:
            # Also if the collective breaks: senders may need the credit.
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
                # A member that has aborted an earlier collective and sent nothing since waits for
                # help with that one, perhaps from this very member.
                if of[0] < tag[0] and not (self._early.get(member) or self._hear(member)):
                    raise Aborted
            elif of == tag and isinstance(message.body, kind):
                return cast("Message[M]", message)
            message.release()

    def _hear(self, member: Address) -> bool:
        """Receives one more message of the member, if one has arrived."""
        try:
            message = self._fabric.receive(PORT, member, timeout=0.0)
        except (TimedOut, Gone):
            return False
        self._early.setdefault(member, []).append(message)
        return True

    def _abort(self, members: Sequence[Address], tag: Tag) -> None:
        """Wakes members that wait for this one, and drops what they sent for this attempt.

        If that stayed, a few attempts in a row would use up their credit.
        """
        others = [m for m in members if m != self._fabric.address]
        for member in others:
            with suppress(Gone):
                self._fabric.send(member, PORT, Abort(tag))
        for member in others:
            while self._hear(member):
                if self._early[member][-1].body.tag <= tag:
                    self._early[member].pop().release()


def _bounds(whole: Bounds, parts: int) -> list[Bounds]:
    start, count = whole[0], whole[1] - whole[0]
    return [(start + count * i // parts, start + count * (i + 1) // parts) for i in range(parts)]


def _weighted_sum(result: Vector, parts: Sequence[tuple[float, Vector]]) -> None:
    total = sum(weight for weight, _ in parts)
    for place, (weight, vector) in enumerate(parts):
        share = weight / total if total > 0 else 1 / len(parts)
        if place == 0:
            result.assign(vector)
            result.scale(share)
        else:
            result.add(vector, share)


def _vector_of(message: Message[Part] | Message[Mean]) -> Vector:
    assert message.vector is not None
    return message.vector
