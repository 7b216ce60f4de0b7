"""A PREP's features and alignments as Kaldi archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unisono.data import Corpus, Part, write_prep
from unisono.speech.export import export
from unisono.speech.features.kaldi_archives import Pointer, read_matrix


def test_archives_are_sorted_as_kaldi_wants_them(tmp_path: Path) -> None:
    corpus = Corpus(
        origin="noise",
        frames=np.arange(6, dtype=np.float32).reshape(3, 2),
        states=np.array([0, 1, 2]),
        starts=np.array([0, 1, 3]),
        utterances=["x", "sp0.9-x"],  # copies at other speeds come last in a PREP
        speakers=["s", "sp0.9-s"],
        parts=[Part.TRAIN, Part.TRAIN],
        state_count=3,
    )
    export(write_prep(tmp_path / "prep", corpus, {}), tmp_path / "out")
    for name in ("feats.scp", "ali.scp", "utt2spk"):
        lines = (tmp_path / "out" / name).read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["sp0.9-x", "x"]
    (first, _) = (tmp_path / "out" / "feats.scp").read_text().splitlines()
    np.testing.assert_array_equal(read_matrix(Pointer.of(first.split()[1])), [[2, 3], [4, 5]])
