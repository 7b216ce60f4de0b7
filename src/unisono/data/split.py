"""The parts of a corpus, and which speakers are held out of training."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from unisono.errors import UserError
from unisono.pool.order import Order
from unisono.text import counted


class Part(Enum):
    """What an utterance is for."""

    TRAIN = "train"
    """Trained on."""
    HELDOUT = "heldout"
    """Never trained on; validation during training. Its speakers are not in TRAIN."""
    TEST = "test"
    """Never looked at while training: for the final figure."""


def hold_out(speakers: Iterable[str], share: float, seed: int) -> frozenset[str]:
    """Chooses the speakers whose utterances are held out.

    Whole speakers, because neighbouring frames and utterances of one voice are so alike that a
    part held out by utterance would measure memory. The choice depends on the set of names and on
    the seed, not on the order or number of times in which the names come.

    Args:
        speakers: Names; repetitions count once.
        share: The share of speakers to hold out, in [0, 1); rounded, but at least one speaker
            is held out (unless `share` is 0) and at least one is left.
        seed: The choice's seed.

    Returns:
        The names held out.

    Raises:
        UserError: The share is not in [0, 1), or there are too few speakers to divide.
    """
    names = sorted(set(speakers))
    if not 0 <= share < 1:
        raise UserError(f"the held-out share is {share}: give a number of at least 0, below 1")
    if share == 0:
        return frozenset()
    if len(names) < 2:
        raise UserError(
            f"cannot hold out a part by speaker from {counted(len(names), 'speaker')}: "
            "bring more speakers, or hold none out (--heldout 0)"
        )
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    return frozenset(names[i] for i in Order(len(names), seed).indices(0, 0, count))


def halve(speakers: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Divides speakers in two halves: one to choose settings by, one to report.

    What was chosen because it scored well on some speakers scores better on them than on others,
    so a figure is reported on speakers that had no part in the choice. The halves depend on the
    set of names alone.

    Args:
        speakers: Names; repetitions count once.

    Returns:
        Those to choose by, and those to report.

    Raises:
        UserError: There are fewer than two speakers.
    """
    names = frozenset(speakers)
    if len(names) < 2:
        raise UserError(
            f"{counted(len(names), 'held-out speaker')} cannot be divided into those that settings "
            "are chosen by and those that are reported: hold out at least 2 when preparing"
        )
    choosing = hold_out(names, 0.5, seed=0)
    return choosing, names - choosing
