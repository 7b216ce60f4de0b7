"""CTC by the three commands, on a language of tones without alignment."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

from support.commands import Command, check_coverage, summary_of, until
from support.tones import write_tones
from support.trainings import train_with_forks
from unisono import Recognizer
from unisono.cli.app import app
from unisono.config import Config, load
from unisono.data import Part, Prep, UtteranceSource
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.speech.export import export
from unisono.speech.prepare import PrepareOptions, prepare
from unisono.training.acoustic_scorer import TrainedNetwork
from unisono.training.builders import examples_in, positions_of, source_of, strategy_of
from unisono.training.decode import DecodeOptions, decode
from unisono.training.export_model import ModelFormat, export_model
from unisono.training.train import check, train

Start = Callable[..., Command]

QUICK = ["network.hidden=[64,64]", "threads=1", "device=cpu", "precision=float32", "epochs=10"]


def config(prep: Path, *sets: str, **flags: object) -> Config:
    return load(None, [*QUICK, *sets], {"prep": str(prep), "objective": "ctc", **flags})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and test data, and a PREP without alignment."""
    place = tmp_path_factory.mktemp("ctc")
    write_tones(place / "train", speakers=8, utterances=6, seed=1)
    write_tones(place / "test", speakers=2, utterances=6, seed=2)
    how = PrepareOptions(heldout=0.2, align=False)
    prepare(place / "train", place / "train" / "lexicon.txt", place / "prep", how, lambda _: None)
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> RunDirectory:
    out = place / "run"
    train(config(place / "prep", "network.dropout=0", "validation.examples=0"), out)
    return RunDirectory(out)


def test_a_prep_without_alignment_has_phones_and_no_states(place: Path, tmp_path: Path) -> None:
    prep = Prep.open(place / "prep")
    names = {file.name for file in prep.path.iterdir()}
    assert {"labels.npy", "label_starts.npy", "speech"} <= names
    assert names.isdisjoint({"states.npy", "priors.npy", "words.ctm"})
    text = (place / "train" / "text").read_text().splitlines()
    said = {line.split()[0]: line.split()[1:] for line in text}
    for u, name in enumerate(prep.table.id):
        phones = prep.labels[prep.label_starts[u] : prep.label_starts[u + 1]]
        # SIL, A, E, I, O, U, Y; of the two pronunciations of `io` the first.
        assert "".join("?_AEIOUY"[p] for p in phones) == "".join(said[name]).upper()
    export(prep, tmp_path / "kaldi")
    assert {p.name for p in (tmp_path / "kaldi").iterdir()} == {"feats.ark", "feats.scp", "utt2spk"}


def test_words_are_found(place: Path, run: RunDirectory, tmp_path: Path) -> None:
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["validation_accuracy"] > 0.9
    options = DecodeOptions()
    score = decode(run.path, place / "test", tmp_path / "out", options, lambda _: None)
    assert score is not None and score.errors.rate < 0.1
    card = (run.path / "MODEL_CARD.md").read_text()
    assert "posteriors of a blank and 7 phones, every 3 frames (CTC)" in card
    said = dict(
        line.split(maxsplit=1) for line in (tmp_path / "out" / "hyp.txt").read_text().splitlines()
    )
    name = min(said)
    speaker = [place / "test" / f"{u}.wav" for u in sorted(said) if u[:4] == name[:4]]
    with Recognizer(run.path) as recognizer:
        assert list(recognizer.recognize_speaker(speaker)[0]) == said[name].split()


def test_a_run_hears_utterances_as_in_training(place: Path, run: RunDirectory) -> None:
    prep, asked = Prep.open(place / "prep"), run.read_config()
    network = TrainedNetwork(run)
    source = source_of(asked, prep, Part.TRAIN, network.model, None)
    assert isinstance(source, UtteranceSource)
    for number in (0, 7):
        x, y = source.batch(np.array([number]))
        with torch.no_grad():
            expected = network.model(x)[0].log_softmax(1).numpy()
        u = source.utterances[number]
        frames = prep.frames[prep.starts[u] : prep.starts[u + 1]].astype(np.float32)
        speaker = prep.table.speaker[u]
        normalised = (frames - prep.speaker_mean[speaker]) / prep.speaker_std[speaker]
        found = network.log_posteriors(normalised)
        assert len(found) == int(y[0, 0]) == -(-len(frames) // 3)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("to", [ModelFormat.ONNX, ModelFormat.TORCH])
def test_an_exported_model_says_the_same(
    to: ModelFormat, run: RunDirectory, tmp_path: Path
) -> None:
    if to is ModelFormat.ONNX:
        pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    difference, _ = export_model(run, tmp_path / "model", to)
    assert difference < 1e-4


@pytest.mark.parametrize("model", ["dnn", "lstm", "blstm"])
def test_every_model_trains(model: str, place: Path, tmp_path: Path) -> None:
    sets = ["network.hidden=[16]", "network.bottleneck=8", "epochs=1", f"model={model}"]
    summary = train(config(place / "prep", *sets), tmp_path / "run")
    assert summary.validation_logprob is not None and summary.validation_logprob < 0
    network = TrainedNetwork(RunDirectory(tmp_path / "run"))
    frames = np.zeros((10, network.dimension), dtype=np.float32)
    assert network.log_posteriors(frames).shape == (4, 8)


def test_keys_count_frames_and_an_utterance_is_256(place: Path) -> None:
    asked = config(place / "prep", "strategy.name=averaging", "strategy.every=2560")
    assert (examples_in(asked, 512), examples_in(asked, 100), examples_in(asked, 0)) == (2, 1, 0)
    assert strategy_of(asked).every == 10
    prep = Prep.open(place / "prep")
    assert positions_of(asked, prep).per_epoch == len(prep.utterances_of(Part.TRAIN)) / 2


def test_processes_of_a_learner_train_as_one_would(place: Path, tmp_path: Path) -> None:
    sets = ["epochs=1", "network.dropout=0", "validation.enabled=false", "minibatch=1280"]
    models = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        asked = config(place / "prep", *sets, processes_per_learner=processes)
        train_with_forks(asked, out)
        models.append(load_file(RunDirectory(out).model))
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_killed_run_counts_every_utterance_once_and_resumes_to_the_same_bytes(
    start: Start, place: Path, tmp_path: Path
) -> None:
    sets = [
        *QUICK, "strategy.sharding=static", "strategy.every=2048", "validation.enabled=false",
        "checkpoint.every=4096", "epochs=20",
    ]  # fmt: skip
    options = [word for each in sets for word in ("--set", each)]
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def begin(out: Path) -> Command:
        return start(
            "train", place / "prep", "--objective", "ctc", "--learners", 2,
            "--out", out, *options,
        )  # fmt: skip

    command = begin(whole)
    assert command.wait() == 0, command.output()
    summary = summary_of(whole)
    check_coverage(whole, summary)
    utterances = len(Prep.open(place / "prep").utterances_of(Part.TRAIN))
    assert summary["minibatches"]["committed"] == 20 * utterances / 2  # type: ignore[index]
    command = begin(broken)
    folder = broken / "checkpoints"
    until(
        lambda: folder.is_dir() and any(p.name.isdigit() for p in folder.iterdir()),
        what="a checkpoint",
    )
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    assert not (broken / "model.safetensors").exists(), "the run was over before it was killed"
    resumed = start("train", "--out", broken, "--resume")
    assert resumed.wait() == 0, resumed.output()
    files = [out / "model.safetensors" for out in (whole, broken)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (["recipe.enabled=true"], "aligned frames, not for --objective ctc"),
        (["network.subsampling=400"], "use a smaller network.subsampling than 400"),
        (["objective=states"], "has no alignment: train with --objective ctc"),
    ],
)
def test_what_cannot_be_combined_is_refused(sets: list[str], reason: str, place: Path) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        check(config(place / "prep", *sets))
    assert "\n" not in str(caught.value)


def test_ctc_needs_phones(prep: Path) -> None:
    with pytest.raises(UserError, match="has no phones, which --objective ctc learns"):
        check(config(prep))


def test_a_prep_without_gaussians_is_not_decoded(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="prepared without alignment; train on it"):
        decode(place / "prep", place / "test", tmp_path / "out", DecodeOptions(), lambda _: None)


def test_alignments_are_given_or_left_out(place: Path, tmp_path: Path) -> None:
    words = ["--alignments", str(tmp_path), "--no-alignment", "--out", str(tmp_path / "x")]
    result = CliRunner().invoke(app, ["prepare", str(place / "train"), *words])
    assert isinstance(result.exception, UserError)
    assert "exclude each other" in str(result.exception)
