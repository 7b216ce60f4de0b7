"""Phones with their frames, from the states of an aligned utterance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unisono.speech.alignment.decision_tree import Ints, frame_phones
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.trainer import GmmHmm


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A phone or word and its frames, `first` to `stop` - 1."""

    name: str
    first: int
    stop: int


class PhoneSegmenter:
    """Tells the phones of aligned states; no state is shared by two phones."""

    def __init__(self, model: GmmHmm) -> None:
        self._topology: Topology = model.topology
        self._untied: Ints = model.tying.untied(model.topology)

    @property
    def states(self) -> int:
        """How many tied states there are."""
        return len(self._untied)

    def segments(self, states: NDArray[np.integer]) -> list[Segment]:
        """The phones of an utterance, silence included."""
        phone, _, begins = frame_phones(self._untied[states], self._topology)
        firsts = np.flatnonzero(begins).tolist()
        return [
            Segment(name=self._topology.phones[phone[first]], first=first, stop=stop)
            for first, stop in zip(firsts, [*firsts[1:], len(states)], strict=True)
        ]
