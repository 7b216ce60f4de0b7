"""Acoustic scale and word insertion penalty, tuned on held-out speakers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.speech.decoding.decoder import Decoder, Frames, Words
from unisono.speech.decoding.scoring import count_errors

_DEFAULT_SCALE = 0.1
_MOVES = (((-2, 0), (2, 0)), ((-1, 0), (1, 0), (0, -1), (0, 1)))
_STEPS_AN_OCTAVE = 3
_PENALTY_STEP = 0.5
_MAX_STEPS = 15


@dataclass(frozen=True, kw_only=True)
class TunedSettings:
    """What was chosen.

    Attributes:
        scale: What log-likelihoods are multiplied by.
        penalty: The word insertion penalty.
        errors: The word errors that were left on the held-out utterances.
        words: The words in them; 0: nothing was tuned.
        tried: How many settings were tried.
    """

    scale: float = _DEFAULT_SCALE
    penalty: float = 0.0
    errors: int = 0
    words: int = 0
    tried: int = 0


def tune(
    decoder: Decoder,
    loglikes: Sequence[Frames],
    references: Sequence[Words],
    log: Callable[[str], None],
) -> TunedSettings:
    """Finds the scale and the penalty with the fewest word errors.

    Scales are 0.1 * 2 ** (k / 3), penalties are multiples of 0.5. From scale 0.1 without a penalty
    one goes to the better one of the scales two steps away until there is none; then likewise to
    the best neighbour in scale or penalty. Small scales take long, so they are not tried unless
    the way leads there. Of equals the one nearest to the start is taken.
    """
    known: dict[tuple[int, int], int] = {}

    def errors(point: tuple[int, int]) -> tuple[int, int, int]:
        if point not in known:
            found = decoder.decode(loglikes, _scale(point), _penalty(point))
            known[point] = sum(
                count_errors(reference, words).total
                for reference, words in zip(references, found, strict=True)
            )
            log(f"scale {_scale(point):.3f}, penalty {_penalty(point):+.1f}: {known[point]} errors")
        return known[point], abs(point[1]), abs(point[0])

    best = (0, 0)
    for moves in _MOVES:
        while True:
            near = [(best[0] + k, best[1] + n) for k, n in moves]
            inside = [point for point in near if max(map(abs, point)) <= _MAX_STEPS]
            better = min([best, *inside], key=errors)
            if better == best:
                break
            best = better
    return TunedSettings(
        scale=_scale(best),
        penalty=_penalty(best),
        errors=known[best],
        words=sum(map(len, references)),
        tried=len(known),
    )


def _scale(point: tuple[int, int]) -> float:
    return float(_DEFAULT_SCALE * 2 ** (point[0] / _STEPS_AN_OCTAVE))


def _penalty(point: tuple[int, int]) -> float:
    return _PENALTY_STEP * point[1]
