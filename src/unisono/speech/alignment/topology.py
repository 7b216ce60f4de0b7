"""Hidden Markov models of phones: which state follows which, and how likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unisono.speech.corpus.lexicon import NOISE, SILENCE

MIN_PHONE_FRAMES = 3
"""Frames that any phone takes at least."""
_WIDEST = 5
EXIT = _WIDEST
"""The column of the moves that leaves a phone."""
_SELF_SCALE = 0.1
_SMALLEST = 0.01


def _speech() -> NDArray[np.float64]:
    """Three states in a row, each kept with probability 3/4."""
    moves = np.zeros((_WIDEST, _WIDEST + 1))
    for state, after in ((0, 1), (1, 2), (2, EXIT)):
        moves[state, state], moves[state, after] = 0.75, 0.25
    return moves


def _silence() -> NDArray[np.float64]:
    """A first state, three that follow each other in any order, and a last one."""
    moves = np.zeros((_WIDEST, _WIDEST + 1))
    moves[0, :4] = 0.25
    moves[1:4, 1:5] = 0.25
    moves[4, 4], moves[4, EXIT] = 0.75, 0.25
    return moves


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """The states of all phones, numbered through, and the moves between them.

    Every phone begins in its state 0. Phone p has states `first[p]` to `first[p + 1] - 1`;
    silence and noise have 5, all others 3, and none ends within fewer than FEWEST_FRAMES frames.

    Attributes:
        phones: Their names, silence first.
        first: The number of each phone's state 0, and the number of all states.
        moves: Phones x 5 x 6: the probability of each move inside a phone; column 5 leaves it.
    """

    phones: tuple[str, ...]
    first: NDArray[np.int64]
    moves: NDArray[np.float64]

    @classmethod
    def initial(cls, phones: Sequence[str]) -> Topology:
        """The topology before anything was learned."""
        quiet = [phone in (SILENCE, NOISE) for phone in phones]
        sizes = [_WIDEST if q else MIN_PHONE_FRAMES for q in quiet]
        moves = np.stack([_silence() if q else _speech() for q in quiet])
        return cls(phones=tuple(phones), first=np.cumsum([0, *sizes]), moves=moves)

    def check(self) -> None:
        """Checks a topology that was read from a file.

        Raises:
            ValueError: Its parts do not fit together.
        """
        phones, first, moves = self.phones, self.first, self.moves
        if not phones or phones[0] != SILENCE or len(set(phones)) < len(phones):
            raise ValueError("the phones are not distinct names, silence first")
        if first.shape != (len(phones) + 1,) or first.dtype.kind != "i" or first[0] != 0:
            raise ValueError("the states of the phones are not numbered")
        if not np.isin(first[1:] - first[:-1], (MIN_PHONE_FRAMES, _WIDEST)).all():
            raise ValueError(f"a phone has neither {MIN_PHONE_FRAMES} nor {_WIDEST} states")
        if moves.shape != (len(phones), _WIDEST, _WIDEST + 1) or moves.dtype.kind != "f":
            raise ValueError("the transitions do not fit the phones")
        if not ((moves >= 0) & (moves <= 1)).all():
            raise ValueError("a transition has a probability outside 0 to 1")
        for phone, size in enumerate((first[1:] - first[:-1]).tolist()):
            inner = moves[phone, :size]
            if (moves[phone, size:] > 0).any() or (inner[:, size:EXIT] > 0).any():
                raise ValueError(f"the phone {phones[phone]!r} has transitions to no state")

    @property
    def states(self) -> int:
        """How many states there are."""
        return int(self.first[-1])

    def size(self, phone: int) -> int:
        """How many states a phone has."""
        return int(self.first[phone + 1] - self.first[phone])

    def reestimate(self, counts: NDArray[np.float64]) -> Topology:
        """The topology whose shares are the shares of counted moves.

        Args:
            counts: Phones x 5 x 6. A move that the topology allows counts once more than it was
                seen, and none falls below 0.01, so that no state becomes a trap.
        """
        allowed = self.moves > 0
        shares = np.where(allowed, counts + 1, 0.0)
        shares /= np.maximum(shares.sum(2, keepdims=True), 1.0)
        shares = np.where(allowed, np.maximum(shares, _SMALLEST), 0.0)
        shares /= np.where(allowed.any(2, keepdims=True), shares.sum(2, keepdims=True), 1.0)
        return Topology(phones=self.phones, first=self.first, moves=shares)

    def scores(self) -> NDArray[np.float64]:
        """Log scores of the moves, phones x 5 x 6; minus infinity where there is none.

        Frames are far from independent, so the acoustic score is scaled down, and the
        duration model is scaled with it, or it would dominate. A transition is
        therefore scored as staying or not (p = probability of staying, scaled by 0.1) and as
        where to, given that one goes (not scaled):

            stay   0.1 log p
            move   0.1 log(1 - p) + log(probability of the move / (1 - p))
        """
        stay = np.diagonal(self.moves, axis1=1, axis2=2)[:, :, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(self.moves / (1 - stay)) + _SELF_SCALE * np.log(1 - stay)
            own = _SELF_SCALE * np.log(stay[:, :, 0])
        scores = np.where(self.moves > 0, scores, -np.inf)
        for state in range(_WIDEST):
            scores[:, state, state] = own[:, state]
        return scores
