"""Features and alignments out as archives, and in again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

from support.tones import write_tones
from unisono.config import load
from unisono.data import Part, Prep
from unisono.errors import UserError
from unisono.speech.decoding.assets import DecodingAssets
from unisono.speech.export import export
from unisono.speech.features.extractors import FeatureType
from unisono.speech.prepare import PrepareOptions, TyingMethod, prepare
from unisono.speech.prepare_aligned import prepare_aligned
from unisono.training.decode import DecodeOptions, decode
from unisono.training.train import train


def quiet(_: str) -> None:
    return


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a PREP of it, and the archives of the PREP with the data's text."""
    place = tmp_path_factory.mktemp("stored")
    write_tones(place / "data", speakers=5, utterances=5, seed=1)
    how = PrepareOptions(heldout=0.2, gaussians=60, tying=TyingMethod.NONE)
    prep = prepare(place / "data", place / "data" / "lexicon.txt", place / "prep", how, quiet)
    export(prep, place / "archives")
    (place / "archives" / "text").write_text((place / "data" / "text").read_text())
    return place


def test_out_and_in_again_is_the_same(place: Path, tmp_path: Path) -> None:
    how = PrepareOptions(features=FeatureType.KALDI, heldout=0.2)
    folder, before = place / "archives", Prep.open(place / "prep")
    for number, name in enumerate(("ali.scp", "ali.ark")):
        again = prepare_aligned(folder, folder / name, tmp_path / f"prep{number}", how, quiet)
        assert np.array_equal(again.frames, before.frames)
        assert np.array_equal(again.states, before.states)
        assert again.table == before.table
    sets = ["network.hidden=[8]", "epochs=1", "threads=1"]
    summary = train(load(None, sets, {"prep": str(again.path)}), tmp_path / "run")
    assert summary.validation_accuracy is not None
    with pytest.raises(UserError, match="cannot decode"):
        decode(tmp_path / "run", folder, tmp_path / "out", DecodeOptions(), quiet)


def test_stored_features_are_aligned_and_decoded(place: Path, tmp_path: Path) -> None:
    how = PrepareOptions(
        features=FeatureType.KALDI, heldout=0.2, gaussians=60, tying=TyingMethod.NONE
    )
    lexicon, folder = place / "data" / "lexicon.txt", place / "archives"
    prep = prepare(folder, lexicon, tmp_path / "prep", how, quiet)
    assert (prep.states == Prep.open(place / "prep").states).mean() > 0.8
    assert DecodingAssets.read(prep.path).dimension == 40
    score = decode(prep.path, folder, tmp_path / "out", DecodeOptions(), quiet)
    assert score is not None and score.errors.rate < 0.05


def test_what_does_not_fit_is_excluded(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "utt2spk").write_text((place / "archives" / "utt2spk").read_text())
    feats = (place / "archives" / "feats.scp").read_text().splitlines()
    states = (place / "archives" / "ali.scp").read_text().splitlines()
    name = [line.split()[0] for line in feats]
    feats[0] += "9"
    feats[1] = f"{name[1]} gone.ark:5"
    feats[2] += "[0:5,0:7]"
    feats[3] += "[0:5]"
    feats[4] = f"{name[4]} cat it |"
    states[5] = f"{name[5]} {feats[5].split()[1]}"
    del states[6]
    (folder / "feats.scp").write_text("\n".join(feats))
    (folder / "ali.scp").write_text("\n".join(states))
    how = PrepareOptions(features=FeatureType.KALDI, heldout=0.2)
    lines: list[str] = []
    prep = prepare_aligned(folder, folder / "ali.scp", tmp_path / "prep", how, lines.append)
    assert set(name) - set(prep.table.id) == set(name[:7])
    assert len(prep.utterances_of(Part.TRAIN))
    excluded = (prep.path / "excluded.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in excluded] == sorted(name[:7])
    reasons = [line.split("\t")[1] for line in sorted(excluded)]
    assert len(set(reasons)) == 4 and "dimension" in reasons[2] and "command" in reasons[4]
    assert any("excluded" in line for line in lines)


def test_what_cannot_go_together_is_one_line(place: Path, tmp_path: Path) -> None:
    folder = place / "archives"
    broken = tmp_path / "broken.ark"
    broken.write_bytes((folder / "ali.ark").read_bytes()[:-3])
    stored = PrepareOptions(features=FeatureType.KALDI, heldout=0.2)
    perturbed = PrepareOptions(features=FeatureType.KALDI, perturb=True)
    for alignments, how, word in (
        (broken, stored, "damaged at byte"),
        (tmp_path / "none.ark", stored, "No such file"),
        (folder / "utt2spk", stored, "damaged|no usable"),
        (folder / "ali.scp", perturbed, "perturb"),
    ):
        with pytest.raises(UserError, match=word) as caught:
            prepare_aligned(folder, alignments, tmp_path / "prep", how, quiet)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="exists"):
        export(Prep.open(place / "prep"), folder)
