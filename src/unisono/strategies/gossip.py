"""gossip-fixed, gossip-random, adpsgd: asynchronous decentralised SGD on rings."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from unisono.fabric import Address, Addresses, Precision
from unisono.pool.order import Order
from unisono.strategies.base import Replica, RoundPlan, Sharding, Strategy
from unisono.strategies.engines.neighbours import NeighbourParticipant
from unisono.strategies.engines.pairwise import PairwiseParticipant
from unisono.strategies.every import AUTO, check_every, plan_pace
from unisono.strategies.mixing import Mixing, NeighbourMixing, PairMixing, complete, ring
from unisono.strategies.options import EXAMPLES


class FixedRing(PairwiseParticipant):
    """Asks its two neighbours on the ring of members, in turns.

    Both ends of an edge begin exchanges, so that an edge of a slow learner is not slow.
    """

    def partner(self, members: Addresses, round_: int) -> Address:
        """The neighbour on the right in even rounds, on the left in odd ones."""
        step = 1 if round_ % 2 == 0 else -1
        return members[(members.index(self.fabric.address) + step) % len(members)]


class RandomRing(PairwiseParticipant):
    """Asks its neighbour on a ring that is drawn for each round, from a seed that all share.

    All learners draw the same ring for a round, but need not be in the same round.
    """

    def __init__(self, replica: Replica, every: int | str, seed: int, precision: Precision) -> None:
        super().__init__(replica, every, precision)
        self._seed = seed

    def partner(self, members: Addresses, round_: int) -> Address:
        following = _following(len(members), self._seed, round_)
        return members[int(following[members.index(self.fabric.address)])]


@lru_cache(maxsize=256)
def _following(members: int, seed: int, round_: int) -> NDArray[np.int64]:
    """The successor of each member on the ring of a round; cached for simulated learners."""
    ring = Order(members, seed).indices(round_, 0, members)
    following = np.empty_like(ring)
    following[ring] = np.roll(ring, -1)
    return following


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """The base of the three."""

    every: int | str = field(default=AUTO, metadata=EXAMPLES)
    """Examples between two exchanges that a learner begins; ``auto``: by their cost."""
    precision: Precision = Precision.FLOAT32
    """Of models as they are sent: ``float32``; ``bfloat16``, ``int8``, ``int4`` or ``1bit`` for
    1/2, 1/4, 1/8 or 1/25 of the bytes."""

    paper: ClassVar[str] = "https://arxiv.org/abs/1710.06952"

    @property
    def waits(self) -> str:
        return "nobody"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_every(self.every)

    def round_plan(self, batch_size: int) -> RoundPlan:
        share = plan_pace(self.every, batch_size)["share"]
        return RoundPlan(Sharding.DYNAMIC, share=share, rounds=1, commits_by_round=False)

    @abstractmethod
    def mixing(self, learners: int) -> Mixing:
        """Who exchanges with whom, as mixing matrices."""

    def explain(self, learners: int) -> list[str]:
        return self.mixing(learners).explain()


@dataclass(frozen=True, kw_only=True)
class GossipFixed(Gossip):
    """Pairs of neighbours on a fixed ring average their models, beside computing (AD-PSGD).

    x_i <- (x_i + x_j) / 2 for one neighbour j at a time, left and right in turns.
    """

    name: ClassVar[str] = "gossip-fixed"

    def mixing(self, learners: int) -> PairMixing:
        """Every edge of the ring as often as every other."""
        return ring(learners)

    def participant(self, replica: Replica) -> FixedRing:
        return FixedRing(replica, self.every, self.precision)


@dataclass(frozen=True, kw_only=True)
class GossipRandom(Gossip):
    """Pairs of neighbours on rings drawn anew average their models, beside computing.

    x_i <- (x_i + x_j) / 2 with j the next on a ring that is drawn for each exchange.
    """

    seed: int = 0
    """Of the rings; the same for all learners."""

    name: ClassVar[str] = "gossip-random"

    def mixing(self, learners: int) -> PairMixing:
        """Every pair as often as every other."""
        return complete(learners)

    def participant(self, replica: Replica) -> RandomRing:
        return RandomRing(replica, self.every, self.seed, self.precision)


@dataclass(frozen=True, kw_only=True)
class ADPSGD(Gossip):
    """Each learner mixes with both neighbours of a fixed ring, beside computing (ADPSGD).

    x_i <- (x_{i-1} + x_i + x_{i+1}) / 3 every minibatch, as in IBM's papers on acoustic models.
    """

    name: ClassVar[str] = "adpsgd"
    paper: ClassVar[str] = "https://arxiv.org/abs/2110.11199"

    def mixing(self, learners: int) -> NeighbourMixing:
        """Weights 1/3, 1/3, 1/3 on the ring."""
        return NeighbourMixing(learners)

    def participant(self, replica: Replica) -> NeighbourParticipant:
        return NeighbourParticipant(replica, self.every, self.precision)
