"""The assets of decoding: the tuning set, and files that are damaged."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.mutations import damaged_bytes, damaged_text
from support.tones import write_tones
from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.decoding.assets import ASSETS_FOLDER, DecodingAssets, select_tuning_set
from unisono.speech.decoding.decoder import Decoder
from unisono.speech.features.extraction import UtteranceFeatures
from unisono.speech.features.normalization import network_features
from unisono.speech.graph.decoding_graph import GraphInputs, build_graph
from unisono.speech.prepare import PrepareOptions, prepare


def test_long_utterances_make_a_small_sample() -> None:
    def heldout(count: int, frames: int) -> list[tuple[Utterance, UtteranceFeatures]]:
        random = np.random.default_rng(3)
        return [
            (
                Utterance(
                    id=f"u{n}", speaker=f"s{n % 3}", words=("no",), recording="r", audio="r.wav"
                ),
                UtteranceFeatures(
                    network=random.normal(size=(frames, 2)).astype(np.float32),
                    cepstra=random.normal(size=(frames, 2)).astype(np.float32),
                ),
            )
            for n in range(count)
        ]

    sizes = {}
    for count, frames in ((300, 5), (30, 20_000), (7, 50)):
        extracted = heldout(count, frames)
        tuning_set = select_tuning_set(extracted)
        assert tuning_set is not None
        sizes[count] = len(tuning_set.words)
        whole = list(network_features(extracted))
        np.testing.assert_allclose(tuning_set.network[:frames], whole[0], atol=1e-5)
        np.testing.assert_allclose(tuning_set.network[-frames:], whole[-1], atol=1e-5)
        for speaker in range(3):
            own = np.concatenate(whole[speaker::3])
            np.testing.assert_allclose([own.mean(), own.std()], [0, 1], atol=1e-3)
    assert sizes == {300: 200, 30: 5, 7: 7}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PREP of a few sentences of tones, with tied states."""
    folder = tmp_path_factory.mktemp("tones")
    write_tones(folder / "data", speakers=3, utterances=3, seed=7)
    options = PrepareOptions(heldout=0.3, gaussians=40, states=30)
    lexicon = folder / "data" / "lexicon.txt"
    return prepare(folder / "data", lexicon, folder / "prep", options, lambda _: None).path


def use(place: Path) -> None:
    """Does with the assets what decoding does."""
    assets = DecodingAssets.read(place)
    model = assets.gmm_hmm
    inputs = GraphInputs(
        lexicon=assets.lexicon,
        language_model=assets.tuning_language_model,
        topology=model.topology,
        tying=model.tying,
        silence=model.silence,
    )
    graph = build_graph(inputs)
    if assets.tuning_set is not None:
        frames = assets.tuning_set.gaussian[: assets.tuning_set.starts[1]]
        with Decoder(graph, inputs.words, 1) as decoder:
            list(decoder.decode([model.mixtures.loglikes(frames)], 0.1, 0.0))


def damage(whole: Path, folder: Path, seed: int) -> str:
    """Damages one file of the assets; returns what became of it."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole / ASSETS_FOLDER, folder / ASSETS_FOLDER)
    file = draw.choice(sorted((folder / ASSETS_FOLDER).iterdir()))
    data = file.read_bytes()
    if data:
        hurt = damaged_bytes if file.suffix == ".npz" else damaged_text
        file.write_bytes(hurt(data, draw))
    try:
        use(folder)
    except UserError as error:
        assert "\n" not in str(error)
        return f"{file.name} refused"
    return f"{file.name} used"


def test_damaged_assets_are_refused_or_decode(prepared: Path, tmp_path: Path) -> None:
    outcomes = {damage(prepared, tmp_path / "damaged", seed) for seed in range(60)}
    assert {"speech.json refused", "tree.json refused", "gaussians.npz refused"} <= outcomes
    assert any(outcome.endswith("used") for outcome in outcomes)


@pytest.mark.parametrize("leaf", [-1, 10_000])
def test_a_tree_that_leads_to_no_state_is_refused(
    prepared: Path, tmp_path: Path, leaf: int
) -> None:
    """The search would read log-likelihoods outside of the matrix that it is given."""
    shutil.copytree(prepared / ASSETS_FOLDER, tmp_path / ASSETS_FOLDER)
    file = tmp_path / ASSETS_FOLDER / "tree.json"
    tree = json.loads(file.read_text())
    tree["trees"][0][0] = leaf
    file.write_text(json.dumps(tree))
    with pytest.raises(UserError, match="leaves are not the states"):
        DecodingAssets.read(tmp_path)
