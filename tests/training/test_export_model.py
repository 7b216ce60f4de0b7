"""A run's network as a file for other programs, against the network itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.config import load
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.training.acoustic_scorer import TrainedNetwork
from unisono.training.export_model import ModelFormat, export_model
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


def test_what_is_there_is_kept(run_of: Runs, tmp_path: Path) -> None:
    out = tmp_path / "model.pt2"
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        export_model(run_of("dnn"), out, ModelFormat.TORCH)
    assert out.read_text() == "mine"


def test_a_run_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model yet"):
        export_model(RunDirectory(tmp_path), tmp_path / "model.pt2", ModelFormat.TORCH)
