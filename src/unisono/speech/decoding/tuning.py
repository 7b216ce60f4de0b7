"""Acoustic scale and word insertion penalty, tuned on held-out speakers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from unisono.speech.decoding.decoder import Frames, Hypothesis, Words
from unisono.speech.decoding.scoring import count_errors

DEFAULT_SCALE = 0.1
"""Where tuning starts, and what is used where nothing is tuned."""
CTC_SCALE = 1.0
"""The same for networks trained with CTC, which have fewer outputs and no priors divided out."""
_STEPS_AN_OCTAVE = 3
_PENALTY_STEP = 0.5
_MAX_DECODINGS = 12
_NEIGHBOURS = tuple((k, n) for k in range(-3, 4) for n in range(-2, 3))
_DIRECTIONS = ((-3, 0), (3, 0), (0, -2), (0, 2))

Point = tuple[int, int]
"""Steps of the scale and of the penalty."""


@dataclass(frozen=True, kw_only=True)
class TunedSettings:
    """The settings of a decoding.

    Attributes:
        scale: The acoustic scale.
        penalty: The word insertion penalty.
        errors: Word errors with these settings on the held-out utterances.
        words: The words of these; 0: nothing was tuned.
        tried: With how many settings they were decoded.
    """

    scale: float = DEFAULT_SCALE
    penalty: float = 0.0
    errors: int = 0
    words: int = 0
    tried: int = 0


class HypothesisDecoder(Protocol):
    """The part of a `Decoder` that tuning uses."""

    def decode(
        self, loglikes: Sequence[Frames], scale: float, penalty: float
    ) -> Iterator[Hypothesis]:
        """Yields the best path of each utterance."""


def tune(
    decoder: HypothesisDecoder,
    loglikes: Sequence[Frames],
    references: Sequence[Words],
    log: Callable[[str], None],
    first: float = DEFAULT_SCALE,
) -> TunedSettings:
    """Finds a scale and a penalty with few word errors.

    Scales are `first` * 2 ** (k / 3), penalties multiples of 0.5. As in minimum error rate training
    (https://aclanthology.org/P03-1021/), the best paths of all decodings so far are an utterance's
    n-best list. A path costs

        graph_cost + scale * acoustic_cost + penalty * words,

    so the list predicts which path any other setting prefers, and how many errors it makes. The
    next setting to decode with is the one with the fewest errors predicted, among those within an
    octave and two steps of the penalty from the best so far. Before that, larger and smaller scales
    and penalties than those of the best are decoded with, since a list holds no path that no
    decoding has preferred. The search ends when no setting is predicted to be better, or after 12
    decodings.

    A lattice would hold more paths, but kaldi-decoder's search for lattices has no limit on active
    states: with 36,000 words and a weak network it took 0.5 times real time at a beam of 9, one
    decoding 0.07.

    Args:
        decoder: Decodes.
        loglikes: Log-likelihoods of the utterances, frames x states each.
        references: Their transcripts.
        log: Receives a line for each decoding.
        first: The scale that the search begins with.
    """
    lists: list[set[Hypothesis]] = [set() for _ in references]
    decoded: dict[Point, int] = {}

    @cache
    def errors_of(utterance: int, words: Words) -> int:
        return count_errors(references[utterance], words).total

    def decode(point: Point) -> None:
        scale, penalty = _scale(point, first), _penalty(point)
        decoded[point] = 0
        for number, found in enumerate(decoder.decode(loglikes, scale, penalty)):
            decoded[point] += errors_of(number, found.words)
            lists[number].add(found)
        log(
            f"tuning: decoding {len(decoded)} of at most {_MAX_DECODINGS}: scale {scale:.3f}, word "
            f"insertion penalty {penalty:+.1f}: {decoded[point]} errors"
        )

    def errors(point: Point) -> int:
        if point in decoded:
            return decoded[point]
        scale, penalty = _scale(point, first), _penalty(point)
        return sum(
            errors_of(number, min(paths, key=lambda path: path.cost(scale, penalty)).words)
            for number, paths in enumerate(lists)
        )

    decode((0, 0))
    while True:
        best = min(decoded, key=lambda p: (decoded[p], abs(p[1]), abs(p[0])))
        if len(decoded) == _MAX_DECODINGS:
            break
        beyond = [d for d in _DIRECTIONS if not any(_lies_beyond(p, best, d) for p in decoded)]
        if beyond:
            decode(_moved(best, beyond[0]))
            continue
        predicted = {p: errors(p) for p in (_moved(best, by) for by in _NEIGHBOURS)}
        following = min(predicted, key=lambda p: (predicted[p], abs(p[1]), abs(p[0] - best[0])))
        if predicted[following] >= decoded[best]:
            break
        decode(following)
    return TunedSettings(
        scale=_scale(best, first),
        penalty=_penalty(best),
        errors=decoded[best],
        words=sum(map(len, references)),
        tried=len(decoded),
    )


def _moved(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]


def _lies_beyond(point: Point, other: Point, direction: Point) -> bool:
    """Whether a point has gone farther than another one in a direction."""
    return sum(d * (p - o) for d, p, o in zip(direction, point, other, strict=True)) > 0


def _scale(point: Point, first: float) -> float:
    return float(first * 2 ** (point[0] / _STEPS_AN_OCTAVE))


def _penalty(point: Point) -> float:
    return _PENALTY_STEP * point[1]
