"""From audio to a word error rate by the three commands, on a language of tones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

from support.tones import write_tones
from unisono.config import load
from unisono.data import FrameSource, Part, Prep
from unisono.errors import UserError
from unisono.models import build
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.speech.prepare import PrepareOptions, prepare
from unisono.training.acoustic_scorer import TrainedNetwork
from unisono.training.builders import shape_of, source_of
from unisono.training.decode import DecodeOptions, decode
from unisono.training.train import train

QUICK = ["minibatch=128", "network.hidden=[64]", "epochs=4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and test data, a PREP and a run."""
    place = tmp_path_factory.mktemp("tones")
    write_tones(place / "train", speakers=8, utterances=5, seed=1)
    write_tones(place / "test", speakers=2, utterances=6, seed=2)
    how = PrepareOptions(heldout=0.2, gaussians=60)
    lexicon = place / "train" / "lexicon.txt"
    prepare(place / "train", lexicon, place / "prep", how, lambda _: None)
    train(load(None, QUICK, {"prep": str(place / "prep")}), place / "run")
    return place


@pytest.mark.parametrize("model", ["prep", "run"])
def test_words_are_found(place: Path, tmp_path: Path, model: str) -> None:
    lines: list[str] = []
    out = tmp_path / "out"
    score = decode(place / model, place / "test", out, DecodeOptions(), lines.append)
    assert score is not None and score.errors.rate < 0.05
    facts = json.loads((out / "score.json").read_text())
    assert facts["model"] in (("monophone", "triphone") if model == "prep" else ("network",))
    assert {"wer", "cer", "words", "ins", "del", "sub", "interval", "acoustic_scale"} <= set(facts)
    assert facts["wer"] == score.errors.rate and facts["tuning"]["words"] > 0
    said = (place / "test" / "text").read_text().splitlines()
    found = (out / "hyp.txt").read_text().splitlines()
    assert [line.split()[0] for line in found] == sorted(line.split()[0] for line in said)
    assert facts["words"] == sum(len(line.split()) - 1 for line in said)


@pytest.mark.parametrize(
    "model", ["tdnn", *(pytest.param(m, marks=pytest.mark.long) for m in ("lstm", "blstm"))]
)
@pytest.mark.timeout(300)
def test_models_of_chunks_find_words(place: Path, tmp_path: Path, model: str) -> None:
    sets = [*QUICK, "network.left=10", "network.right=10", "rate.start=0.1", "threads=1"]
    run = tmp_path / "run"
    train(load(None, sets, {"prep": str(place / "prep"), "model": model}), run)
    score = decode(run, place / "test", tmp_path / "out", DecodeOptions(), lambda _: None)
    assert score is not None and score.errors.rate < 0.1


@pytest.mark.parametrize("model", ["dnn", "tdnn", "lstm", "blstm"])
def test_whole_utterances_are_heard_as_in_training(place: Path, tmp_path: Path, model: str) -> None:
    sets = ["network.hidden=[16]", "network.left=7", "network.right=4", "network.context=3"]
    config = load(None, [*sets, "network.delay=2"], {"prep": str(place / "prep"), "model": model})
    run, prep = RunDirectory.create(tmp_path / "run", config), Prep.open(place / "prep")
    shape = shape_of(config, prep)
    built = build(model, seed=3, **shape).eval()
    write_atomically(run.model, save(built.state_dict()))
    described = {"model": model, **shape, "context": 3, "chunk": 32, "prep": ""}
    write_atomically(run.model_description, json.dumps(described).encode())
    network = TrainedNetwork(run)
    trained = source_of(config, prep, Part.TRAIN, built, None)
    plain = FrameSource(prep, Part.TRAIN, context=0)
    for utterance in (0, 5):
        heard = network.log_posteriors(plain.whole(utterance)[0].numpy())
        with torch.no_grad():
            expected = built(trained.whole(utterance)[0]).flatten(0, -2).log_softmax(1)
        assert np.abs(heard - expected.numpy()).max() < 1e-4
    if model in ("dnn", "tdnn"):  # cut in pieces: not heard
        everything = torch.cat([x for x, _ in plain.batches(1000)]).numpy()
        assert len(everything) > 4096
        around = everything[4096 - 50 : 4096 + 50]
        apart = network.log_posteriors(around)[20:-20]
        assert np.abs(network.log_posteriors(everything)[4066:4126] - apart).max() < 1e-4


def test_a_run_is_decoded_without_its_prep_and_remembers_what_it_tuned(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode(place / "run", place / "test", tmp_path / "a", DecodeOptions(order=1), lambda _: None)
    (place / "prep").rename(place / "away")
    try:
        monkeypatch.setattr(
            "unisono.speech.graph.decoding_graph.build_graph", lambda _: pytest.fail("again")
        )
        decode(
            place / "run", place / "test", tmp_path / "b", DecodeOptions(order=1), lambda _: None
        )
    finally:
        (place / "away").rename(place / "prep")
    facts = [json.loads((tmp_path / name / "score.json").read_text()) for name in "ab"]
    for own in facts:
        assert 0 < own.pop("real_time_factor") <= own.pop("real_time_factor_with_tuning") < 1
    assert facts[0] == facts[1] and facts[0]["beam"] == 15


def test_an_arpa_file_of_the_users_own(place: Path, tmp_path: Path) -> None:
    arpa = tmp_path / "own.arpa"
    entries = "".join(f"-0.8 {word} -0.1\n" for word in ("</s>", "io", "other", "uya"))
    arpa.write_text(f"\\data\\\nngram 1=5\n\n\\1-grams:\n-99 <s> 0\n{entries}\\end\\\n")
    out = tmp_path / "out"
    how = DecodeOptions(language_model=arpa)
    assert decode(place / "run", place / "test", out, how, lambda _: None) is not None
    found = {word for line in (out / "hyp.txt").open() for word in line.split()[1:]}
    assert found == {"io", "uya"}


def test_a_model_of_everybody_tunes_on_nobody(place: Path, tmp_path: Path) -> None:
    """Its settings are the defaults, or those of a run that held speakers out."""
    flags = {"prep": str(place / "prep"), "validation.on": "none"}
    summary = train(load(None, QUICK, flags), tmp_path / "all")
    prep = Prep.open(place / "prep")
    frames = prep.frames_of(Part.TRAIN) + prep.frames_of(Part.HELDOUT)
    assert prep.frames_of(Part.HELDOUT) > 0 and summary.examples == 4 * frames
    assert summary.validation_logprob is None
    assert not (tmp_path / "all" / "speech" / "heldout.npz").exists()
    lines: list[str] = []
    score = decode(tmp_path / "all", place / "test", tmp_path / "a", DecodeOptions(), lines.append)
    assert score is not None and score.errors.rate < 0.05
    assert any("not tuned" in line for line in lines)
    facts = json.loads((tmp_path / "a" / "score.json").read_text())
    assert (facts["acoustic_scale"], facts["word_insertion_penalty"]) == (0.1, 0)
    assert facts["tuning"]["words"] == 0
    (tmp_path / "like").mkdir()
    settings = {"acoustic_scale": 0.2, "word_insertion_penalty": -1.5}
    (tmp_path / "like" / "score.json").write_text(json.dumps(settings))
    how = DecodeOptions(like=tmp_path / "like")
    decode(tmp_path / "all", place / "test", tmp_path / "b", how, lines.append)
    assert json.loads((tmp_path / "b" / "score.json").read_text()).items() >= settings.items()
    with pytest.raises(UserError, match="no scale"):
        how = DecodeOptions(like=tmp_path / "all")
        decode(tmp_path / "all", place / "test", tmp_path / "c", how, lines.append)


def test_priors_are_mean_posteriors(place: Path) -> None:
    priors = np.load(place / "run" / "speech" / "priors.npy")
    assert np.exp(priors).sum() == pytest.approx(1, abs=1e-3)
    counted = np.load(place / "prep" / "priors.npy")
    assert np.abs(np.exp(priors) - np.exp(counted)).max() < 0.05


def test_without_text_there_are_words_but_no_score(place: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("wav.scp", "utt2spk"):
        text = (place / "test" / name).read_text()
        if name == "wav.scp":
            text = text.replace(" s", f" {place / 'test'}/s") + "gone gone.wav\n"
        (bare / name).write_text(text)
    out = tmp_path / "out"
    assert decode(place / "prep", bare, out, DecodeOptions(), lambda _: None) is None
    assert "wer" not in json.loads((out / "score.json").read_text())
    assert (out / "hyp.txt").stat().st_size > 0
    assert "gone" in (out / "excluded.txt").read_text()


def test_what_cannot_be_decoded_is_one_line(place: Path, tmp_path: Path) -> None:
    begun = place / "begun"
    begun.mkdir()
    (begun / "config.toml").write_text((place / "run" / "config.toml").read_text())
    for model, data, out, word in (
        ("prep", "test", place / "prep", "exists"),
        ("test", "test", tmp_path / "o", "cannot decode"),
        ("prep", "nowhere", tmp_path / "o", "nowhere"),
        ("nowhere", "test", tmp_path / "o", "there is no run"),
        ("begun", "test", tmp_path / "o", "train it to the end"),
    ):
        with pytest.raises(UserError, match=word) as caught:
            decode(place / model, place / data, out, DecodeOptions(), lambda _: None)
        assert "\n" not in str(caught.value)
