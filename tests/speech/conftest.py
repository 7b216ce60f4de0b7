"""Small corpora that the tests write themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a data directory; values are the lines of its files, audio is noise."""

    def make(files: Mapping[str, str], *, seconds: Mapping[str, float], rate: int = 16000) -> Path:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        random = np.random.default_rng(0)
        for name, length in seconds.items():
            noise = random.normal(0, 0.1, int(length * rate)).clip(-1, 1)
            soundfile.write(folder / name, noise, rate, subtype="PCM_16")
        return folder

    return make


@pytest.fixture
def kaldis_vectors(request: pytest.FixtureRequest) -> list[dict[str, np.ndarray]]:
    """Features that Kaldi computed: of one utterance, and of more where there is shared data."""
    files = [*(Path(__file__).parents[1] / "data" / "features").glob("*.npz")]
    assert files
    with suppress(pytest.skip.Exception):
        shared = request.getfixturevalue("shared")
        files += sorted((shared / "reference" / "features").glob("*.npz"))
    return [dict(np.load(file)) for file in files]
