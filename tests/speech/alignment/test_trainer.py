"""Training of the models that align."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unisono.speech.alignment import trainer
from unisono.speech.alignment.trainer import AlignmentData, Trainer
from unisono.speech.corpus.lexicon import Lexicon

LEXICON = Lexicon(entries={"yes": [("Y", "E", "S")], "no": [("N", "O"), ("N", "A", "O")]})


def test_graphs_that_are_not_cached_are_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(2)
    np.save(tmp_path / "frames.npy", random.normal(size=(300, 6)).astype(np.float32))
    data = AlignmentData(
        file=tmp_path / "frames.npy",
        starts=np.arange(0, 301, 60),
        words=[("yes", "no"), ("no",), ("yes",), ("no", "yes"), ("yes", "yes")],
        lexicon=LEXICON,
    )

    def means() -> np.ndarray:
        with Trainer(data, seed=0, processes=1, log=lambda _: None) as made:
            return made.monophones(range(5), 40).mixtures.means

    kept = means()
    monkeypatch.setattr(trainer, "_MAX_CACHED_NODES", 0)
    np.testing.assert_array_equal(means(), kept)
