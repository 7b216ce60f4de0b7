"""Acoustic scale and word insertion penalty, tuned on held-out speakers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unisono.speech.decoding.decoder import Frames, Words
from unisono.speech.decoding.progress import DecodingProgress
from unisono.speech.decoding.scoring import count_errors

DEFAULT_SCALE = 0.1
"""Where tuning starts, and what is used where nothing is tuned."""
_STEPS_AN_OCTAVE = 3
_PENALTY_STEP = 0.5
_MAX_STEPS = 15
# Scales this many steps, a factor of two, from the one that lattices were made with.
_LATTICE_STEPS = 3
_NEIGHBOURS = tuple((k, n) for k in range(-2, 3) for n in range(-2, 3))

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
        tried: How many settings were tried.
    """

    scale: float = DEFAULT_SCALE
    penalty: float = 0.0
    errors: int = 0
    words: int = 0
    tried: int = 0


class LatticeDecoder(Protocol):
    """The part of a `Decoder` that tuning uses."""

    processes: int

    @property
    def worker_cpu_s(self) -> float:
        """CPU seconds of worker processes."""
        ...

    def make_lattices(self, loglikes: Sequence[Frames], scale: float) -> Iterator[Path]:
        """Yields the file of each utterance's lattice."""
        ...

    def rescore(self, lattices: Sequence[Path], scale: float, penalty: float) -> list[Words]:
        """The words of each lattice's best path."""
        ...


def tune(
    decoder: LatticeDecoder,
    loglikes: Sequence[Frames],
    references: Sequence[Words],
    log: Callable[[str], None],
) -> TunedSettings:
    """Finds the scale and the penalty with the fewest word errors.

    The utterances are decoded once to lattices, which are rescored with each setting. Scales are
    0.1 * 2 ** (k / 3), penalties multiples of 0.5. From (0.1, 0) the search goes to the best
    setting within two steps of both until none is better. Lattices hold for scales within a factor
    of two of the one they were made with; where the search reaches the end of that range they are
    made again, from there.

    Args:
        decoder: Decodes to lattices, and rescores them.
        loglikes: Log-likelihoods of the utterances, frames x states each.
        references: Their transcripts.
        log: Receives progress lines.
    """
    known: dict[Point, int] = {}
    lattices: list[Path] = []
    made_at = best = (0, 0)

    def errors(point: Point) -> tuple[int, int, int]:
        if point not in known:
            found = decoder.rescore(lattices, _scale(point), _penalty(point))
            known[point] = sum(
                count_errors(reference, words).total
                for reference, words in zip(references, found, strict=True)
            )
        return known[point], abs(point[1]), abs(point[0] - made_at[0])

    scales: set[int] = set()
    while best[0] not in scales and (not scales or abs(best[0] - made_at[0]) == _LATTICE_STEPS):
        made_at = best
        scales.add(best[0])
        known.clear()
        lattices = _make_lattices(decoder, loglikes, _scale(made_at), log)
        while True:
            near = [(best[0] + k, best[1] + n) for k, n in _NEIGHBOURS]
            inside = [
                point
                for point in near
                if max(map(abs, point)) <= _MAX_STEPS
                and abs(point[0] - made_at[0]) <= _LATTICE_STEPS
            ]
            better = min([best, *inside], key=errors)
            log(
                f"tuning: scale {_scale(better):.3f}, word insertion penalty "
                f"{_penalty(better):+.1f}: {known[better]} errors"
            )
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


def _make_lattices(
    decoder: LatticeDecoder, loglikes: Sequence[Frames], scale: float, log: Callable[[str], None]
) -> list[Path]:
    lengths = [len(each) for each in loglikes]
    progress = DecodingProgress(
        "tuning",
        lengths,
        worker_cpu_s=lambda: decoder.worker_cpu_s,
        processes=decoder.processes,
        log=log,
    )
    lattices = []
    for lattice in decoder.make_lattices(loglikes, scale):
        lattices.append(lattice)
        progress.advance()
    return lattices


def _scale(point: Point) -> float:
    return float(DEFAULT_SCALE * 2 ** (point[0] / _STEPS_AN_OCTAVE))


def _penalty(point: Point) -> float:
    return _PENALTY_STEP * point[1]
