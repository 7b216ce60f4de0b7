"""A corpus whose pieces do not fit together is refused, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unisono.data import Corpus, Part, write_prep
from unisono.errors import UserError

BROKEN = {
    "frames of integers": (dict(frames=np.zeros((31, 3), dtype=np.int16)), "int16"),
    "frames in a row": (dict(frames=np.zeros(31, dtype=np.float32)), "1-dimensional"),
    "no frames": (dict(frames=np.zeros((0, 3), dtype=np.float32)), "nothing"),
    "no dimension": (dict(frames=np.zeros((31, 0), dtype=np.float32)), "nothing"),
    "too few states": (dict(states=np.zeros(30, dtype=np.int16)), "31 frames but 30 states"),
    "states of floats": (dict(states=np.zeros(31)), "float64"),
    "a negative state": (dict(states=np.full(31, -1)), "from -1"),
    "a state too high": (dict(state_count=3), "outside 0..2"),
    "too few starts": (dict(starts=np.array([0, 31])), "8 integers"),
    "starts too low": (dict(starts=np.array([0, 4, 5, 14, 16, 23, 26, 30])), "31"),
    "starts from 1": (dict(starts=np.array([1, 4, 5, 14, 16, 23, 26, 31])), "from 1"),
    "an empty utterance": (dict(starts=np.array([0, 4, 4, 14, 16, 23, 26, 31])), "'c1'"),
    "falling starts": (dict(starts=np.array([0, 9, 5, 14, 16, 23, 26, 31], np.uint64)), "'c1'"),
    "too few speakers": (dict(speakers=["ann"] * 6), "6 speakers"),
    "too few parts": (dict(parts=[Part.TRAIN] * 6), "6 parts"),
    "an id twice": (dict(utterances=["a", "b", "c", "d", "e", "f", "b"]), "'b' occurs 2"),
    "no train part": (dict(parts=[Part.TEST] * 7), "no utterance is for training"),
    "held out by utterance": (dict(parts=[Part.TRAIN, Part.HELDOUT] + [Part.TRAIN] * 5), "'cy'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_corpus_that_is_not_in_order_is_refused(
    corpus: Corpus, name: str, tmp_path: Path
) -> None:
    changes, said = BROKEN[name]
    with pytest.raises(UserError) as caught:
        write_prep(tmp_path / "p", replace(corpus, **changes), {})
    assert said in str(caught.value)
    assert str(caught.value).startswith("by hand: ")
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_found(corpus: Corpus, value: float, tmp_path: Path) -> None:
    frames = corpus.frames.copy()
    frames[15, 2] = value
    with pytest.raises(UserError, match="'a2' has frames with values that are not finite"):
        write_prep(tmp_path / "p", replace(corpus, frames=frames), {})


def test_unsigned_integers_and_columns_first_are_accepted(corpus: Corpus, tmp_path: Path) -> None:
    plain = write_prep(tmp_path / "plain", corpus, {})
    odd = replace(
        corpus,
        frames=np.asfortranarray(corpus.frames),
        states=corpus.states.astype(np.uint64),
        starts=corpus.starts.astype(np.uint64),
    )
    assert write_prep(tmp_path / "odd", odd, {}).fingerprint == plain.fingerprint
