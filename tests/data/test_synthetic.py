"""Synthetic frames can be learned: context and depth help, and nothing is perfect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unisono.data import Part, Prep, synthesise
from unisono.errors import UserError

SETTINGS = dict(
    speakers=20,
    utterances_per_speaker=5,
    frames_per_utterance=200,
    states=24,
    dimension=8,
    seed=0,
    noise=1.0,
)


@pytest.fixture(scope="module")
def prep(tmp_path_factory: pytest.TempPathFactory) -> Prep:
    return synthesise(tmp_path_factory.mktemp("synthetic") / "prep", **SETTINGS)


def test_depth_and_context_help_and_no_model_is_perfect(
    prep: Prep, fit: Callable[..., tuple[float, float]]
) -> None:
    accuracy = {
        (context, layers): fit(prep, context=context, layers=layers, hidden=128, steps=300)[1]
        for context in (0, 2)
        for layers in (0, 2)
    }
    chance = 1 / 24
    assert accuracy[0, 0] > 4 * chance
    assert accuracy[0, 2] > accuracy[0, 0] + 0.1
    assert accuracy[2, 0] > accuracy[0, 0] + 0.1
    assert accuracy[2, 2] > accuracy[0, 2] + 0.1
    assert accuracy[2, 2] < 0.95


def test_speakers_differ_by_an_offset_that_normalisation_removes(prep: Prep) -> None:
    lengths = np.diff(prep.starts)
    speaker = np.repeat(prep.table.speaker, lengths)
    frames = np.array(prep.frames, dtype=np.float64)
    between = np.array([frames[speaker == k].mean(axis=0) for k in range(20)]).var(axis=0)
    assert between.mean() > 0.5
    normal = (frames - prep.speaker_mean[speaker]) / prep.speaker_std[speaker]
    assert np.abs([normal[speaker == k].mean() for k in range(20)]).max() < 1e-3


def test_states_dwell_and_every_state_occurs(prep: Prep) -> None:
    for u in range(len(prep.table.id)):
        states = np.array(prep.states[prep.starts[u] : prep.starts[u + 1]])
        changes = np.flatnonzero(np.diff(states)) + 1
        assert np.diff(changes).min() >= 3  # the first and the last visit may be cut off
    assert set(np.unique(prep.states)) == set(range(24))


def test_every_part_has_speakers_of_its_own(prep: Prep) -> None:
    speakers = {part: {prep.table.speaker[u] for u in prep.utterances_of(part)} for part in Part}
    assert {part: len(of) for part, of in speakers.items()} == {
        Part.TRAIN: 14,
        Part.HELDOUT: 3,
        Part.TEST: 3,
    }
    assert len(set.union(*speakers.values())) == 20


def test_the_seed_fixes_everything(prep: Prep, tmp_path: Path) -> None:
    assert synthesise(tmp_path / "same", **SETTINGS).fingerprint == prep.fingerprint
    other = synthesise(tmp_path / "other", **(SETTINGS | {"seed": 1}))
    assert other.fingerprint != prep.fingerprint


@pytest.mark.parametrize(
    ("name", "value"), [("speakers", 2), ("states", 0), ("noise", -1.0), ("seed", -1)]
)
def test_too_small_a_number_is_refused(name: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}"):
        synthesise(tmp_path / "p", **(SETTINGS | {name: value}))
