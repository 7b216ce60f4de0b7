"""What is known about learning: how many examples a strategy needs, compared with one learner.

A timing simulation says how many examples a second a cluster trains, not how many are needed.
This table says the latter: the examples, of all learners together, until the held-out log-prob is
the best solo run's final one less 0.02, divided by those that solo needs. It comes from
docs/evidence.md (8.1 h of speech, real runs, 1 to 3 seeds) and docs/evidence/simulation.md (2.0 h,
simulated with real gradients, one seed), with the default DNN and the default rates:

    ========================  ========  ========================  ====================
    strategy                  learners  8.1 h                     2.0 h
    ========================  ========  ========================  ====================
    averaging                 4, 8, 16  0.54, 0.55, 0.67          (8) 0.67
    averaging, dynamic        8         0.55
    gossip-random             8         0.52                      0.66
    gossip-fixed              8                                   0.67
    server                    8                                   0.86
    delay-by-one              8         0.67                      missed by 0.05
    allreduce                 8         missed by 0.003           missed by 0.04
    adpsgd                    8                                   missed by 0.006
    ========================  ========  ========================  ====================

Differences of less than a tenth are within the spread of seeds (averaging with 8 learners: 0.52 to
0.59), so the strategies that average models rarely count as equal. Rounds between every 16 and
every 64 minibatches need equally many examples (docs/evidence.md); more frequent ones lose on
held-out speakers, and every 128 minibatches lost 0.02 a frame on AN4 (docs/evidence/network.md).
"""

from __future__ import annotations

import math

from unisono.training.compare_variants import Variant

SOLO_SHARE = 0.87
"""Of solo's epochs, until its own final log-prob less 0.02 (8.1 h, 3 epochs)."""

_AVERAGING = {4: 0.54, 8: 0.55, 16: 0.67}
"""Examples to target over those of solo, by learners (8.1 h)."""
_FURTHER = 0.67 / 0.55
"""For each doubling of the learners beyond the last one measured."""

_BESIDE_AVERAGING: dict[str, float | None] = {
    "averaging": 1.0,
    "gossip-random": 1.0,
    "gossip-fixed": 1.0,
    "server": 0.86 / 0.67,
    "delay-by-one": 0.67 / 0.55,
    "allreduce": None,
    "adpsgd": None,
}
"""Examples to target over those of averaging with as many learners; None: it was not reached."""

MOST_MEASURED = max(_AVERAGING)
PACES = (16, 32, 64, 128)
"""Minibatches a learner between two rounds that are worth a try."""
_RAREST = 64
"""Minibatches between two rounds up to which the pace makes no difference."""
_RARER = 0.1
"""More examples for each doubling from there on: an assumption."""


def examples_to_target(variant: Variant, learners: int, pace: float | None) -> float | None:
    """Examples until solo's final log-prob less 0.02, over those that solo needs for it.

    Args:
        variant: the strategy.
        learners: how many.
        pace: minibatches between two rounds; None where the strategy has its own.

    Returns:
        None where it is not known to get there.
    """
    if learners == 1:
        return 1.0
    beside = _BESIDE_AVERAGING.get(variant.strategy)
    if beside is None:
        return None
    rarer = 0.0 if pace is None else max(0.0, math.log2(pace / _RAREST))
    return _of_averaging(learners) * beside * (1 + _RARER * rarer)


def _of_averaging(learners: int) -> float:
    """Linear between the numbers measured, in the logarithm; fewer than the first as the first."""
    known = sorted(_AVERAGING)
    if learners <= known[0]:
        return _AVERAGING[known[0]]
    if learners >= known[-1]:
        return float(_AVERAGING[known[-1]] * _FURTHER ** math.log2(learners / known[-1]))
    high = next(count for count in known if count >= learners)
    low = known[known.index(high) - 1]
    place = math.log2(learners / low) / math.log2(high / low)
    return _AVERAGING[low] + place * (_AVERAGING[high] - _AVERAGING[low])
