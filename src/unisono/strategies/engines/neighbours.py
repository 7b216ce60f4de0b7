"""The engine of ADPSGD: exchanges with both neighbours of a ring, weights 1/3, 1/3, 1/3."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from unisono.fabric import Address, Addresses, Message, Precision, Vector
from unisono.pool.ranges import Notes, Ranges, merge, subtract
from unisono.strategies.base import Replica, TrainedWork
from unisono.strategies.engines.gossip import GossipParticipant
from unisono.strategies.engines.gossip_messages import Busy, NeighbourModel

LEAST_EXCHANGE = 1
"""Minibatches between two exchanges that a learner begins, where they cost little."""


@dataclass
class _Offer:
    """A model as it was sent to a neighbour, to be mixed with the neighbour's."""

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
    """Seconds that the agent spent on copying, sending and mixing, without waiting."""

    def add(self, partner: Address, seconds: float, nbytes: int) -> None:
        self.partners.add(partner)
        self.longest_s = max(self.longest_s, seconds)
        self.nbytes += nbytes


def neighbours(members: Addresses, who: Address) -> list[Address]:
    """The neighbours on the ring of members: two, one of two members, none of one.

    A newcomer may hear from others before it sees itself among the members.
    """
    ring = members if who in members else Addresses((*members, who))
    place = ring.index(who)
    around = [ring[(place + step) % len(ring)] for step in (1, -1)]
    return [other for other in dict.fromkeys(around) if other != who]


class NeighbourParticipant(GossipParticipant):
    """Exchanges with both neighbours of a ring.

    When it is due, learner i sends its model x_i (parameters plus pending deltas) to its left and
    its right neighbour, l and r, and with b_l and b_r, the models that these send to it,

        x_i <- x_i + w (b_l - x_i) + w (b_r - x_i),    w = 1/3:    (x_i + b_l + b_r) / 3

    which is a row of the mixing matrix of ADPSGD's ring. With two learners w = 1/2; a neighbour
    that sees another number of members says so with its model, and both use the smaller w.

    **Models are paired.** For each model that i sends to r exactly one comes back, and x_i in the
    delta w (b_r - x_i) is the one that r received, so r's delta is w (x_i - b_r), its exact
    negative. The mixing matrix stays symmetric, and the sum of all models is preserved, however
    different the speeds are and whenever each delta is applied. Mixing in whatever a neighbour has
    sent last does not preserve it: with buffers that are t exchanges old the mean moves by
    1 / (1 + 2 t / 3) of the mean step, and a slow neighbour pulls the others back to the same old
    model again and again. So each model is mixed in once.

    **Nobody waits.** A learner that receives a model and has sent none answers at once, beside its
    computing: an edge is as fast as the faster of its two ends. Models that cross are each other's
    answer. No exchange is begun with a neighbour that has begun one since the last tick, or whose
    model is still on its way.

    Answers are never held back, so there is no deadlock. At most one exchange with each neighbour
    is under way, so that the weights of a learner stay positive.
    """

    def __init__(
        self, replica: Replica, every: int | str, precision: Precision = Precision.FLOAT32
    ) -> None:
        super().__init__(replica, every, LEAST_EXCHANGE, precision)
        self._offers: dict[Address, _Offer] = {}
        self._sent: dict[Address, Ranges] = {}
        """Own work in models that were sent, until the receiver's next model arrives."""
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
        """Writes an event for the exchanges since the last tick."""
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
        """Begins exchanges with neighbours with which none is under way; if alone, with itself."""
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
        """Ends an exchange that will not be answered; its work remains to be shared."""
        self._offers.pop(who, None)
        self._open.add(TrainedWork(list(self._sent.pop(who, ()))))

    # Receiving.

    def _take_in(self, message: Message[NeighbourModel]) -> None:
        """Mixes in a neighbour's model, which is an answer or is to be answered."""
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
        """Reports work in an earlier model: its receiver, which has sent since, has taken it in."""
        self._reports.report({self.fabric.address: work})
        self._sent = {who: subtract(ranges, work) for who, ranges in self._sent.items()}

    def _mix(self, offer: _Offer, theirs: Vector, weight: float) -> None:
        """Adds the weighted difference to the parameters; overwrites the offered model."""
        delta = offer.model
        delta.difference(theirs, delta)
        delta.scale(weight)
        self.replica.add(delta)

    def _sent_work(self) -> Ranges:
        return merge(*self._sent.values())

    def _on_gone(self, who: Address) -> None:
        self._withdraw(who)
        self._begun_by.discard(who)
