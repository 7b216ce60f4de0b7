"""Made-up speakers: which voice of espeak-ng, how fast, how high, in which noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ACCENTS = (
    "en-US",
    "en-US-nyc",
    "en",
    "en-GB-x-rp",
    "en-GB-scotland",
    "en-GB-x-gbclan",
    "en-GB-x-gbcwmd",
    "en-029",
)
# Says the same as no variant at all.
_NO_VARIANT = {"fast"}
_TEST_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One speaker.

    Attributes:
        accent: The English that is spoken.
        variant: Whose throat; no variant speaks both for training and for the test.
        rate: Words a minute, about.
        pitch: Of espeak's 0 to 100.
        range: How far the pitch goes up and down, of espeak's 0 to 100.
        colour: The noise around: its power falls with frequency to this power.
    """

    accent: str
    variant: str
    rate: float
    pitch: float
    range: float
    colour: float

    @property
    def name(self) -> str:
        """What espeak-ng calls it."""
        return f"gmw/{self.accent}+{self.variant}"


def divide_variants(variants: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Divides variants into those that speak for training and those for the test.

    Variants whose names differ in a final number alone sound much alike, and stay together.
    """
    families: dict[str, list[str]] = {}
    for name in sorted(set(variants) - _NO_VARIANT):
        families.setdefault(name.rstrip("0123456789").lower(), []).append(name)
    order = np.random.default_rng(seed).permutation(sorted(families)).tolist()
    tested = order[: max(1, round(_TEST_SHARE * len(order)))]
    trained = order[len(tested) :]
    both = [[name for family in part for name in families[family]] for part in (trained, tested)]
    return both[0], both[1]


def draw_voice(variants: Sequence[str], number: int, random: np.random.Generator) -> Voice:
    """Draws a speaker; numbers that follow each other go through all variants in turn."""
    return Voice(
        accent=_ACCENTS[int(random.integers(len(_ACCENTS)))],
        variant=variants[number % len(variants)],
        rate=float(random.uniform(140, 210)),
        pitch=float(random.uniform(30, 70)),
        range=float(random.uniform(20, 80)),
        colour=float(random.uniform(0, 2)),
    )
