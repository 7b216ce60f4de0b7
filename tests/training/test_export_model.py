"""A run's network as a file for other programs, against the network itself."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from unisono.cli.export import export
from unisono.config import load
from unisono.data import FrameSource, Part, Prep
from unisono.errors import UserError
from unisono.models import build
from unisono.runs.directory import RunDirectory
from unisono.training.acoustic_scorer import TrainedNetwork
from unisono.training.export_model import ModelFormat, export_model
from unisono.training.nnet3_reader import Nnet3
from unisono.training.train import train

MODELS = {
    "dnn": ["network.hidden=[24]", "network.batch_norm=true"],
    "tdnn": ["network.hidden=[16,16]"],
    "lstm": ["network.hidden=[16]"],
    "blstm": ["network.hidden=[16]"],
}


Runs = Callable[[str], RunDirectory]


@pytest.fixture(scope="module")
def run_of(prep: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A short run of a model."""
    place = tmp_path_factory.mktemp("runs")

    @cache
    def make(model: str) -> RunDirectory:
        sets = [*MODELS[model], f"model={model}", "epochs=1", "threads=1", "validation.on=none"]
        train(load(None, sets, {"prep": str(prep)}), place / model)
        return RunDirectory(place / model)

    return make


@pytest.mark.parametrize("model", ["dnn", "tdnn"])
def test_torch(model: str, run_of: Runs, tmp_path: Path) -> None:
    out = tmp_path / "model.pt2"
    difference, frames = export_model(run_of(model), out, ModelFormat.TORCH)
    assert difference < 1e-4 and frames > 100
    extra = {"unisono.json": ""}
    loaded = torch.export.load(out, extra_files=extra).module()
    assert json.loads(extra["unisono.json"])["model"] == model
    network = TrainedNetwork(run_of(model))
    x = np.random.default_rng(1).normal(size=(77, network.dimension)).astype(np.float32)
    np.testing.assert_allclose(
        loaded(torch.from_numpy(x)).detach().numpy(), network.log_posteriors(x), atol=1e-4
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


@pytest.mark.long
@pytest.mark.parametrize("model", ["dnn", "tdnn", "blstm"])
def test_onnx(model: str, run_of: Runs, tmp_path: Path) -> None:
    """By another implementation of every operator."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = tmp_path / "model.onnx"
    difference, _ = export_model(run_of(model), out, ModelFormat.ONNX)
    assert difference < 1e-3
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["unisono"])
    assert facts["model"] == model
    network = TrainedNetwork(run_of(model))
    x = np.random.default_rng(1).normal(size=(77, network.dimension)).astype(np.float32)
    (found,) = session.run(["log_posteriors"], {"frames": x})
    np.testing.assert_allclose(found, network.log_posteriors(x), atol=1e-3)


@pytest.mark.long
def test_what_a_format_has_not_is_one_line(run_of: Runs, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(UserError, match="no LSTM with a projection: train with"):
        export_model(run_of("lstm"), tmp_path / "model.onnx", ModelFormat.ONNX)
    with pytest.raises(UserError, match="use --format onnx"):
        export_model(run_of("blstm"), tmp_path / "model.pt2", ModelFormat.TORCH)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["dnn", "tdnn"])
def test_kaldi_nnet3(
    model: str, run_of: Runs, prep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The priors are the network's mean posteriors, not the counts of the alignment."""
    out, beside = tmp_path / "model.raw", tmp_path / "model.raw.priors"
    run = run_of(model)
    export(run.path, out, ModelFormat.KALDI_NNET3)
    assert f"{beside}: priors of the states" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == [out, beside]
    network = TrainedNetwork(run)
    x = np.random.default_rng(1).normal(size=(77, network.dimension)).astype(np.float32)
    np.testing.assert_allclose(Nnet3(out).compute(x), network.log_posteriors(x), atol=1e-4)
    source = FrameSource(Prep.open(prep), Part.TRAIN, context=0)
    whole = (source.whole(u)[0].numpy() for u in range(len(source.utterances)))
    posteriors = np.concatenate([np.exp(network.log_posteriors(frames)) for frames in whole])
    priors = np.array(beside.read_text().split()[1:-1], dtype=np.float64)
    np.testing.assert_allclose(priors, posteriors.mean(0, dtype=np.float64), rtol=1e-4)
    with pytest.raises(UserError, match="exists already"):
        export_model(run, out, ModelFormat.KALDI_NNET3)
    out.unlink()
    with pytest.raises(UserError, match=r"model\.raw\.priors exists already"):
        export_model(run, out, ModelFormat.KALDI_NNET3)


def test_priors_are_of_the_prep_that_the_run_was_trained_on(run_of: Runs, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(run_of("dnn").path, run.path)
    facts = json.loads(run.model_description.read_text())
    run.model_description.write_text(json.dumps({**facts, "prep": "of other data"}))
    with pytest.raises(UserError, match="is not the PREP that"):
        export_model(run, tmp_path / "model.raw", ModelFormat.KALDI_NNET3)
    assert not list(tmp_path.glob("model.raw*"))


@pytest.mark.parametrize(
    ("model", "facts", "said"),
    [
        ("lstm", {"hidden": [4]}, "of dnn and tdnn only"),
        ("blstm", {"hidden": [4]}, "of dnn and tdnn only"),
        ("dnn", {"hidden": [4], "objective": "ctc"}, "trained with CTC"),
    ],
)
def test_what_kaldi_nnet3_has_not(
    model: str, facts: dict[str, object], said: str, tmp_path: Path
) -> None:
    run, sizes = RunDirectory(tmp_path), {"inputs": 3, "outputs": 2}
    save_file(build(model, **sizes, hidden=[4]).state_dict(), run.model)
    run.model_description.write_text(json.dumps({"model": model, "context": 0, **sizes, **facts}))
    with pytest.raises(UserError, match=said):
        export_model(run, tmp_path / "model.raw", ModelFormat.KALDI_NNET3)
    assert not list(tmp_path.glob("model.raw*"))


def test_what_is_there_is_kept(run_of: Runs, tmp_path: Path) -> None:
    out = tmp_path / "model.pt2"
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        export_model(run_of("dnn"), out, ModelFormat.TORCH)
    assert out.read_text() == "mine"


def test_where_nothing_can_be_written_is_one_line(
    run_of: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=f"there is no folder {tmp_path / 'nowhere'}"):
        export_model(run_of("dnn"), tmp_path / "nowhere" / "model.pt2", ModelFormat.TORCH)

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.export, "save", no_room)
    with pytest.raises(UserError, match=r"cannot write .*model.pt2: No space left"):
        export_model(run_of("dnn"), tmp_path / "model.pt2", ModelFormat.TORCH)
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model yet"):
        export_model(RunDirectory(tmp_path), tmp_path / "model.pt2", ModelFormat.TORCH)
