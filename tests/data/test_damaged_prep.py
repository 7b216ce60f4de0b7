"""Any damage to any file of a PREP: one clear line when it is opened, or data to train on."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from support.mutations import damaged_bytes, damaged_text
from unisono.data import ChunkSource, Corpus, FrameSource, Part, Prep, write_prep
from unisono.errors import UserError

_HEADER = 128
"""Bytes before the numbers of a small .npy file."""


def use(path: Path) -> None:
    """Does with a PREP what training does."""
    prep = Prep.open(path)
    assert prep.frame_shift is None or prep.frame_shift.total_seconds() > 0
    for part in Part:
        if not len(prep.utterances_of(part)):
            continue
        for x, y in FrameSource(prep, part, context=1).batches(16):
            assert x.shape[1] == 3 * prep.header.dimension
            cross_entropy(torch.zeros(len(y), prep.header.states), y)
        chunks = ChunkSource(prep, part, chunk=4, left=1, right=1)
        chunks.batch(np.arange(len(chunks)))


def damage(whole: Path, folder: Path, seed: int) -> str:
    """Damages one file of a copy; returns what became of it."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    file = draw.choice(sorted(folder.iterdir()))
    data = file.read_bytes()
    for _ in range(draw.choice((1, 1, 1, 3))):
        if file.suffix == ".json":
            data = damaged_text(data, draw)
        else:
            header = draw.choice((0, _HEADER))
            data = data[:header] + damaged_bytes(data[header:] or b"\0", draw)
    file.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numbers beyond float16
            use(folder)
    except UserError as error:
        assert "\n" not in str(error) and str(folder) in str(error)
        return f"{file.name} refused"
    return f"{file.name} used"


def test_a_damaged_prep_is_refused_or_trained_on(corpus: Corpus, tmp_path: Path) -> None:
    write_prep(tmp_path / "whole", corpus, {"tool": "test"})
    outcomes = {damage(tmp_path / "whole", tmp_path / "damaged", seed) for seed in range(300)}
    names = {file.name for file in (tmp_path / "whole").iterdir()}
    assert {f"{name} refused" for name in names} <= outcomes
    assert "frames.npy used" in outcomes


@pytest.mark.parametrize("state", [7, 30000, -7])
def test_states_that_no_model_has_are_refused(corpus: Corpus, tmp_path: Path, state: int) -> None:
    prep = write_prep(tmp_path / "prep", corpus, {})
    states = np.array(prep.states)
    states[5] = state
    np.save(prep.path / "states.npy", states)
    with pytest.raises(UserError, match=rf"states\.npy has states from .*{state}.* 0 to 6"):
        Prep.open(prep.path)


@pytest.mark.parametrize(
    ("name", "value"), [("speaker_std", 0.0), ("speaker_std", -1.0), ("priors", np.nan)]
)
def test_statistics_that_cannot_normalise_are_refused(
    corpus: Corpus, tmp_path: Path, name: str, value: float
) -> None:
    prep = write_prep(tmp_path / "prep", corpus, {})
    array = np.array(getattr(prep, name))
    array.flat[1] = value
    np.save(prep.path / f"{name}.npy", array)
    with pytest.raises(UserError, match=rf"{name}\.npy"):
        Prep.open(prep.path)
