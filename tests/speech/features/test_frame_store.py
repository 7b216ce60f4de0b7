"""Frames in files: what is stored comes back, and a full disk is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unisono.errors import UserError
from unisono.speech.features.frame_store import FrameStore, concatenate_to_file


def arrays(random: np.random.Generator) -> list[np.ndarray]:
    return [random.normal(size=(n, 4)).astype(np.float32) for n in (3, 0, 7, 1)]


def test_what_is_put_away_comes_back(tmp_path: Path) -> None:
    pieces = arrays(np.random.default_rng(0))
    store = FrameStore(tmp_path / "frames")
    for piece in pieces:
        store.append(piece)
    for found, piece in zip(store.arrays(), pieces, strict=True):
        np.testing.assert_array_equal(found, piece)
    assert FrameStore(tmp_path / "empty").arrays() == []


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_joined_arrays_are_one_array(tmp_path: Path, kind: str) -> None:
    pieces = arrays(np.random.default_rng(1))
    whole = np.concatenate(pieces).astype(kind)
    made = concatenate_to_file(iter(pieces), tmp_path / "all.npy", whole.shape, kind)
    assert made.dtype == whole.dtype
    np.testing.assert_array_equal(made, whole)
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), whole)


def fill_shelf(path: Path) -> None:
    store = FrameStore(path)
    store.append(np.zeros((100, 4), dtype=np.float32))
    store.arrays()


def fill_file(path: Path) -> None:
    concatenate_to_file([np.zeros((100, 4))], path, (100, 4), "float32")


@pytest.mark.parametrize("fill", [fill_shelf, fill_file])
def test_a_full_disk_is_one_line(fill: Callable[[Path], None]) -> None:
    with pytest.raises(UserError, match="No space left on device; make room"):
        fill(Path("/dev/full"))
