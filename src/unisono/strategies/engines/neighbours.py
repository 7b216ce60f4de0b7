"""Exchanges with both neighbours of a ring: the engine of ADPSGD with weights 1/3, 1/3, 1/3."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unisono.fabric import Address, Addresses, Message, Precision, Vector
from unisono.pool.ranges import Notes, Ranges, merge, subtract
from unisono.strategies.base import Replica, TrainedWork
from unisono.strategies.engines.gossip import GossipParticipant
from unisono.strategies.engines.gossip_messages import Busy, NeighbourModel

LEAST_EXCHANGE = 1
"""Minibatches a learner between two exchanges that it begins, where they cost little."""


@dataclass
class _Offer:
    """A model that was sent to a neighbour, as it travelled; it is mixed with that one's own."""

    model: Vector
    weight: float
    began: float


@dataclass
class _Interval:
    """The exchanges between two ticks."""

    partners: set[Address] = field(default_factory=set)
    longest_s: float = 0.0
    nbytes: int = 0
    agent_s: float = 0.0
    """Seconds that the agent worked for them: copies, sending, mixing; no waiting."""

    def add(self, partner: Address, seconds: float, nbytes: int) -> None:
        self.partners.add(partner)
        self.longest_s = max(self.longest_s, seconds)
        self.nbytes += nbytes


def neighbours(members: Addresses, who: Address) -> list[Address]:
    """The next and the last on the ring of the members: two, one of two members, none of one.

    A learner that was let in may hear from others before it sees itself among the members.
    """
    ring = members if who in members else Addresses((*members, who))
    place = ring.index(who)
    around = [ring[(place + step) % len(ring)] for step in (1, -1)]
    return [other for other in dict.fromkeys(around) if other != who]


class NeighbourParticipant(GossipParticipant):
    """One learner's part in mixing with both neighbours of a ring.

    When it is due, learner i sends its model x_i (parameters plus pending deltas) to its left and
    its right neighbour, l and r, and with b_l and b_r, the models that these send to it,

        x_i <- x_i + w (b_l - x_i) + w (b_r - x_i),    w = 1/3:    (x_i + b_l + b_r) / 3

    which is a row of the mixing matrix of ADPSGD's ring. Two learners are one neighbour of each
    other, w = 1/2; a neighbour that sees another number of members says so with its model, and both
    use the smaller w.

    **Models are paired.** Of each model that i sends to r exactly one comes back, and x_i in the
    delta w (b_r - x_i) is the one that r got, so r's delta is w (x_i - b_r), its exact negative.
    The mixing matrix stays symmetric, and the sum of all models what it is, however different the
    speeds are and whenever each delta is applied. Mixing in whatever a neighbour has sent last does
    not do so: with buffers that are t exchanges old the mean moves by 1 / (1 + 2 t / 3) of the mean
    step, and a neighbour that is slow pulls the others back to the same old model again and again.
    So a model is mixed in once, and the next comes from that neighbour when it is there.

    **Nobody waits.** A neighbour that has sent no model answers one that comes with its own at
    once, beside its computing: an edge is as fast as the faster of its two ends. Two that send at
    the same time are each other's answer. With a neighbour that has begun an exchange since the
    last time, or whose model is still on its way, none is begun.

    Answers are never held back, so there is no circle of waiting, and any number of exchanges can
    be under way; one with each neighbour is, so the weights of a learner stay positive.
    """

    def __init__(
        self, replica: Replica, every: int | str, precision: Precision = Precision.FLOAT32
    ) -> None:
        super().__init__(replica, every, LEAST_EXCHANGE, precision)
        self._offers: dict[Address, _Offer] = {}
        self._sent: dict[Address, Ranges] = {}
        """Own work in models that were sent, until the next model of their receiver comes."""
        self._begun_by: set[Address] = set()
        """Neighbours that have begun an exchange since the last tick."""
        self._since_tick = _Interval()

    def _on_tick(self) -> None:
        if not self._in or self._ending:
            return
        others = self._others()
        self._pace.exchanged(self._since_tick.agent_s)
        self._end_interval(others)
        self.due += len(others)
        self._offer([a for a in others if a not in self._begun_by])
        self._begun_by.clear()

    def _end_interval(self, others: list[Address]) -> None:
        """Tells of the exchanges since the last tick."""
        ended, self._since_tick = self._since_tick, _Interval()
        self.completed += len(ended.partners.intersection(others))
        if ended.partners:
            self.replica.event(
                "round",
                round=self.rounds,
                time_s=ended.longest_s,
                bytes=ended.nbytes,
                members=1 + len(ended.partners),
            )
            self.rounds += 1

    def _on_peer(self, message: Message[Any]) -> None:
        match message.body:
            case NeighbourModel() if self._in:
                began = self.fabric.now()
                self._take_in(message)
                message.release()
                self._since_tick.agent_s += self.fabric.now() - began
            case NeighbourModel():
                self._turn_away(message)
            case Busy():
                self._withdraw(message.sender)
                self._refused_by.add(message.sender)

    def _go_on(self) -> None:
        if not self._in:
            return
        self._tell_closed()
        if self._ending:
            if not self._offers:
                self._end_interval(self._others())
                self._end()
            return
        self._free_all()
        if self._draining and self._open.ranges:
            self._offer(self._others())

    def _others(self) -> list[Address]:
        return neighbours(self.fabric.members().addresses(), self.fabric.address)

    # Sending.

    def _offer(self, to: list[Address]) -> None:
        """Begins an exchange with those with whom none is under way; alone, one with oneself."""
        others = self._others()
        free = [a for a in to if a not in self._offers and a not in self._refused_by]
        is_member = self.fabric.address in self.fabric.members().addresses()
        if not is_member or (others and not free):
            return
        offer, notes = self._make_offer()
        for place, other in enumerate(free):
            last = place == len(free) - 1
            one = offer if last else replace(offer, model=offer.model.copy())
            if self._send(other, notes, one):
                self._offers[other] = one
        if not others:
            self._mix(offer, offer.model, offer.weight)
            self._reports.report(notes)
            self._open, self._sent = TrainedWork(), {}
            self.rounds += 1
        self._since_tick.agent_s += self.fabric.now() - offer.began

    def _make_offer(self) -> tuple[_Offer, Notes]:
        began = self.fabric.now()
        model, notes = self._take_model()
        return _Offer(model, 1 / (1 + len(self._others())), began), notes

    def _send(self, to: Address, notes: Notes, offer: _Offer) -> bool:
        coded = self._codec.encode(to, offer.model)
        if not self._tell(to, NeighbourModel(notes, offer.weight), coded):
            return False
        self._sent[to] = notes[self.fabric.address]
        self._open = TrainedWork()
        return True

    def _withdraw(self, who: Address) -> None:
        """No answer will come: the work stays to be shared."""
        self._offers.pop(who, None)
        self._open.add(TrainedWork(list(self._sent.pop(who, ()))))

    # Receiving.

    def _take_in(self, message: Message[NeighbourModel]) -> None:
        """A neighbour's model: the answer to one's own, or one that is to be answered."""
        sender, body = message.sender, message.body
        self._taken_in(self._sent.pop(sender, ()))
        offer = self._offers.pop(sender, None)
        if offer is None:
            offer, notes = self._make_offer()
            if not self._send(sender, notes, offer):
                return
            self._begun_by.add(sender)
        assert message.vector is not None
        self._since_tick.add(sender, self.fabric.now() - offer.began, message.vector.nbytes)
        theirs = self._codec.decode(sender, message.vector, offer.model)
        self._mix(offer, theirs, min(offer.weight, body.weight))
        self._reports.report(body.notes)

    def _taken_in(self, work: Ranges) -> None:
        """This is in the model of another: one that sends has taken in what it got, or will."""
        self._reports.report({self.fabric.address: work})
        self._sent = {who: subtract(ranges, work) for who, ranges in self._sent.items()}

    def _mix(self, offer: _Offer, theirs: Vector, weight: float) -> None:
        """Hands in the weighted difference; the offered model is used up."""
        delta = offer.model
        delta.difference(theirs, delta)
        delta.scale(weight)
        self.replica.add(delta)

    def _sent_work(self) -> Ranges:
        return merge(*self._sent.values())

    def _on_gone(self, who: Address) -> None:
        self._withdraw(who)
        self._begun_by.discard(who)
