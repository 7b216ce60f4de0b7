"""How often learners average: as often as helps, and as the measured cost of a round allows.

With c the seconds of a round and s those of a minibatch, a round every k minibatches takes a share
c / (k s) of the computing, so

    k = max(LEAST_SHARE, c / (OVERHEAD * s)),    rounded up to a power of two,

is the most frequent pace that costs at most ``OVERHEAD``. c is the *shortest* time that any member
spent in its round: what the others spend beyond that is waiting for the slowest, which a rarer
round would not shorten. More often than every ``LEAST_SHARE`` minibatches does not pay even where
it costs nothing: models that were apart for a while average to a better one on held-out speakers
(docs/evidence.md).

With dynamic sharding learners compute while a round is under way, so that a slow link costs little
computing, and rounds that are too rare cost accuracy:

    k = max(LEAST_SHARE, min(c / (OVERHEAD * s), max(MOST_SHARE, c / s))),

where one round every c / s minibatches is all that the links can carry.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.fabric.address import Address

OVERHEAD = 0.05
"""What rounds may cost, as a share of the computing."""
LEAST_SHARE = 16
"""Minibatches per learner between rounds where a round costs little; also the initial pace."""
MOST_SHARE = 64
"""The rarest pace that needs no more examples than ``LEAST_SHARE`` (docs/evidence.md)."""
MEASURED = 4
"""Rounds that every member has measured before the pace changes."""
LEAST_ROUNDS = 50
"""In a whole run, however much a round costs: fewer are not averaging."""

PaceSchedule = tuple[tuple[int, int], ...]
"""(number of a round, minibatches a learner from that round on), in ascending order."""


@dataclass(frozen=True)
class RoundTiming:
    """What a round cost a member, and the computing before it."""

    round_s: float
    compute_s: float
    """Since the round before."""
    minibatches: int
    """Trained in that time by this member."""


@dataclass
class Pace:
    """Minibatches a learner between two rounds: as a schedule says, or chosen by measurement."""

    schedule: PaceSchedule
    adaptive: bool = False
    overlapped: bool = False
    """Whether learners compute while a round is under way."""
    most: int = 1
    _timings: dict[Address, list[RoundTiming]] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """The pace that was chosen last."""
        return self.schedule[-1][1]

    def measured(self, who: Address, timing: RoundTiming | None) -> None:
        """Adds a member's measurement of its last round."""
        if self.adaptive and timing is not None and timing.minibatches > 0:
            self._timings.setdefault(who, []).append(timing)

    def at(self, round_: int, members: Sequence[Address]) -> int:
        """The pace from a round on; a new one is chosen once every member has measured enough."""
        if self.adaptive:
            counts = [len(self._timings.get(member, [])) for member in members]
            measured = min(counts, default=0) >= MEASURED
            share = self._choose(members) if measured else min(self.share, self.most)
            if share != self.share:
                self.schedule = (*self.schedule, (round_, share))
                self._timings.clear()
        return next(share for first, share in reversed(self.schedule) if first <= round_)

    def _choose(self, members: Sequence[Address]) -> int:
        """The pace by measurement, at most twice as rare as before: first rounds are slower."""
        cost = min(statistics.median(t.round_s for t in self._timings[m]) for m in members)
        step = statistics.median(
            t.compute_s / t.minibatches for m in members for t in self._timings[m]
        )
        ratio = cost / step if step > 0 else 0.0
        wanted = max(ratio / OVERHEAD, 1e-9)
        if self.overlapped:
            wanted = min(wanted, max(MOST_SHARE, ratio))
        rounded = max(math.ceil(2.0 ** math.ceil(math.log2(wanted))), LEAST_SHARE)
        if self.share // 4 < rounded <= self.share:
            rounded = self.share  # Measurements vary: keep a pace that is close enough.
        return max(1, min(rounded, 2 * self.share, self.most))
