"""What a learner does next, as the coordinator deals or lends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unisono.coordinator.client import Client
from unisono.fabric import Address
from unisono.pool.pool import Deal
from unisono.pool.ranges import Range, count, cut
from unisono.strategies.base import Division, Terms

NO_AGREEMENT = -1


@dataclass(frozen=True)
class EndOfPart:
    """This learner's part of a round is trained, or there is nothing for it to train."""

    agreement: int
    checkpoint: bool


@dataclass(frozen=True)
class Minibatch:
    """One position of the pool in this learner's hands."""

    position: int
    agreement: int = NO_AGREEMENT
    """Dealt: the agreement that ends its round."""
    end: EndOfPart | None = None
    """Dealt: set if it is the last one of this learner's part."""
    stand_in: bool = False
    """Another learner's: computed to keep step, with weight 0."""
    reached: int = 0
    """How far the pool is handed out once it is trained, as a position.

    Dealt: the same for all learners at the same step of a round, so that what a user makes of it
    (a learning rate) is the same, too.
    """


@dataclass(frozen=True)
class EnterDeal:
    """A new deal begins."""

    deal: Deal


@dataclass(frozen=True)
class Dry:
    """No lease is free at the moment: flush."""


@dataclass(frozen=True)
class Over:
    """Everything is settled."""

    leader: Address | None
    """The one that sees to the final model."""


Item = Minibatch | EnterDeal | EndOfPart | Dry | Over


@dataclass(frozen=True)
class Planner:
    """Asks for deals or leases, ahead of the training."""

    client: Client
    address: Address
    terms: Terms
    checkpoint_every: int
    """Positions between checkpoints; 0: none."""
    want: int
    """Positions to ask for at a time (drawn)."""

    def items(self) -> Iterator[Item]:
        """Everything, until the pool is empty and settled."""
        if self.terms.division is Division.DEALT:
            return self._dealt()
        return self._drawn()

    def _dealt(self) -> Iterator[Item]:
        number: int | None = None
        while True:
            answer = self.client.call("deal", "plan", number=number, patient=False)
            if answer["kind"] == "wait":
                yield Dry()
                answer = self.client.call("deal", "plan", number=number, patient=True)
            if answer["kind"] == "over":
                yield Over(answer["leader"] and Address.parse(answer["leader"]))
                return
            deal = Deal.from_body(dict(answer))
            number = deal.number + 1
            yield EnterDeal(deal)
            for round_ in range(deal.rounds):
                yield from self._round(deal, round_)

    def _round(self, deal: Deal, round_: int) -> Iterator[Item]:
        agreement = deal.first + round_
        members = len(deal.members)
        width = deal.share * members
        whole = cut(deal.ranges, round_ * width, (round_ + 1) * width)
        part = deal.part(round_, self.address)
        steps = count(part)
        end = EndOfPart(agreement, self._crosses(whole))
        for step, position in enumerate(_positions(part), start=1):
            if step < steps:
                reached = cut(whole, step * members - 1, step * members)[0][1]
                yield Minibatch(position, agreement, reached=reached)
            else:
                yield Minibatch(position, agreement, end, reached=whole[-1][1])
        if part:
            return
        if self.terms.lockstep:
            yield Minibatch(whole[0][0], agreement, end, stand_in=True, reached=whole[-1][1])
        else:
            yield end

    def _crosses(self, ranges: list[Range]) -> bool:
        """Whether a round goes over a multiple of ``checkpoint_every``."""
        every = self.checkpoint_every
        return every > 0 and any(stop // every > start // every for start, stop in ranges)

    def _drawn(self) -> Iterator[Item]:
        while True:
            answer = self.client.call("draw", "plan", want=self.want, patient=False)
            if answer["kind"] == "wait":
                yield Dry()
                answer = self.client.call("draw", "plan", want=self.want, patient=True)
            if answer["kind"] == "over":
                yield Over(answer["leader"] and Address.parse(answer["leader"]))
                return
            for position in _positions([(a, b) for a, b in answer["ranges"]]):
                yield Minibatch(position, reached=position + 1)


def _positions(ranges: list[Range]) -> Iterator[int]:
    for start, stop in ranges:
        yield from range(start, stop)
