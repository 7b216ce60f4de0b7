"""Phones of states that a tree has tied, against the phones that the states were made from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from unisono.speech.alignment.decision_tree import Question, Side, StateTying
from unisono.speech.alignment.gmm import GaussianMixtures
from unisono.speech.alignment.segments import PhoneSegmenter, Segment
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.trainer import GmmHmm

TOPOLOGY = Topology.initial(["SIL", "A", "B"])


def tying() -> StateTying:
    """Questions about either neighbour; numbers that do not follow the phones."""
    after_a = Question(Side.LEFT, frozenset([1]), 10, 3)
    before_b = Question(Side.RIGHT, frozenset([2]), after_a, 0)
    return StateTying(trees=((7, 8, 9, 11, 12), (before_b, 1, 4), (2, 5, 6)), states=13)


def test_each_phone_has_its_frames() -> None:
    random = np.random.default_rng(0)
    phones = [0, 1, 1, 2, 2, 1, 2, 0, 2, 1, 0]
    states: list[int] = []
    expected: list[Segment] = []
    around = [0, *phones, 0]
    for (left, phone), right in zip(pairwise(around), around[2:], strict=False):
        own = tying().states_of(left, phone, right)
        frames = [state for state in own for _ in range(random.integers(1, 4))]
        if phone == 0:  # its three inner states come in any order
            frames = [own[0], own[3], own[1], own[2], own[1], own[4]]
        name = TOPOLOGY.phones[phone]
        expected.append(Segment(name=name, first=len(states), stop=len(states) + len(frames)))
        states += frames
    ones = np.ones((13, 2))
    mixtures = GaussianMixtures(
        starts=np.arange(14), weights=np.ones(13), means=ones, variances=ones
    )
    model = GmmHmm(mixtures=mixtures, topology=TOPOLOGY, tying=tying(), silence=0.5)
    assert PhoneSegmenter(model).segments(np.array(states, dtype=np.int16)) == expected
