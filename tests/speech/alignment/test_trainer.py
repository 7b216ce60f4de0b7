"""Training of the models that align."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unisono.errors import UserError
from unisono.speech.alignment import trainer
from unisono.speech.alignment.trainer import Alignment, AlignmentData, GmmHmm, Schedule, Trainer
from unisono.speech.corpus.lexicon import Lexicon

LEXICON = Lexicon(entries={"yes": [("Y", "E", "S")], "no": [("N", "O"), ("N", "A", "O")]})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AlignmentData:
    random = np.random.default_rng(2)
    words = [("yes", "no"), ("no",), ("yes",), ("no", "yes"), ("yes", "yes")] * 4
    starts = np.cumsum([0, *random.integers(40, 80, len(words))])
    frames = random.normal(size=(starts[-1], 6)).astype(np.float32)
    np.save(tmp_path / "frames.npy", frames)
    monkeypatch.setattr(
        trainer, "MONOPHONES", Schedule(passes=6, growing=4, realign=frozenset({1, 3}))
    )
    monkeypatch.setattr(trainer, "TRIPHONES", Schedule(passes=4, growing=3, realign=frozenset({2})))
    return AlignmentData(file=tmp_path / "frames.npy", starts=starts, words=words, lexicon=LEXICON)


def train(data: AlignmentData, processes: int) -> tuple[GmmHmm, dict[int, Alignment | None], list]:
    lines: list[str] = []
    with Trainer(data, seed=0, processes=processes, log=lines.append) as made:
        first = made.monophones(range(16), 60)
        model = made.triphones(first, range(16), most=30, gaussians=90)
        return model, made.align(model, range(16), range(16, 20)), lines


def test_any_number_of_processes_gives_the_same_and_leaves_no_file(
    data: AlignmentData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_PORTION_FRAMES", 300)
    model, paths, lines = train(data, 1)
    other, other_paths, other_lines = train(data, 3)
    assert lines == other_lines
    np.testing.assert_array_equal(model.mixtures.means, other.mixtures.means)
    assert (model.tying, model.silence) == (other.tying, other.silence)
    assert paths.keys() == set(range(20))
    for u, path in paths.items():
        same = other_paths[u]
        assert path is not None and same is not None
        assert len(path.states) == data.starts[u + 1] - data.starts[u]
        np.testing.assert_array_equal(path.states, same.states)
        np.testing.assert_array_equal(path.words, same.words)
        assert np.unique(path.words[path.words >= 0]).tolist() == list(range(len(data.words[u])))
    assert [file.name for file in data.file.parent.iterdir()] == ["frames.npy"]


def test_portions_do_not_change_what_is_learned(
    data: AlignmentData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def means() -> np.ndarray:
        with Trainer(data, seed=0, processes=1, log=lambda _: None) as made:
            return made.monophones(range(16), 0).mixtures.means

    whole = means()
    monkeypatch.setattr(trainer, "_PORTION_FRAMES", 300)
    np.testing.assert_allclose(means(), whole, atol=1e-4)


def test_a_full_disk_is_reported_in_one_line(data: AlignmentData) -> None:
    with Trainer(data, seed=0, processes=1, log=lambda _: None) as made:
        for file in made._files.folder.iterdir():
            assert file.stat().st_blocks * 512 >= data.starts[-1] * 4  # allocated, with no holes
        made._files.model(1).mkdir()
        with pytest.raises(UserError, match=r"cannot write .*make room there"):
            made.monophones(range(16), 60)
