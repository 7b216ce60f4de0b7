"""`precision`: what is computed in bfloat16, and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from unisono.config import ComputePrecision, load
from unisono.errors import UserError
from unisono.models import build
from unisono.optim import NaturalGradientSGD
from unisono.training import precision
from unisono.training.train import train

CPU = torch.device("cpu")
SETS = ["epochs=1", "threads=1", "minibatch=128", "device=cpu", "network.hidden=[64]"]


@pytest.mark.parametrize(("has", "chosen"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_device_has_it(
    monkeypatch: pytest.MonkeyPatch, has: bool, chosen: str
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: has)
    model = nn.Linear(2, 2)
    assert precision.choose_precision(ComputePrecision.AUTO, CPU, model).value == chosen


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_recurrent_models_stay_in_float32_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    wanted = "float32" if device == "cpu" else "bfloat16"
    ours = build("lstm", seed=0, inputs=3, outputs=2, hidden=[4])
    for model in (ours, nn.Sequential(nn.GRU(3, 4), nn.Linear(4, 2))):
        found = precision.choose_precision(ComputePrecision.AUTO, torch.device(device), model)
        assert found.value == wanted


def test_what_is_named_is_taken() -> None:
    model = nn.LSTM(2, 2)
    for wanted in (ComputePrecision.FLOAT32, ComputePrecision.BFLOAT16):
        assert precision.choose_precision(wanted, CPU, model) is wanted


def test_tf32_without_a_gpu_is_refused_and_leaves_nothing(prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match="tf32, which only GPUs have"):
        train(load(None, [*SETS, "precision=tf32"], {"prep": str(prep)}), out)
    assert not out.exists()


def test_parameters_gradients_and_loss_stay_float32() -> None:
    model = nn.Linear(6, 4)
    x = torch.randn(8, 6)
    with precision.autocast(ComputePrecision.BFLOAT16, CPU):
        y = model(x)
        loss = functional.cross_entropy(y, torch.zeros(8, dtype=torch.long))
    loss.backward()
    assert y.dtype is torch.bfloat16
    assert loss.dtype is torch.float32
    assert {t.dtype for p in model.parameters() for t in (p, p.grad)} == {torch.float32}


@pytest.mark.parametrize("chosen", [ComputePrecision.FLOAT32, ComputePrecision.BFLOAT16])
def test_natural_gradients_are_multiplied_in_what_is_computed_in(chosen: ComputePrecision) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = NaturalGradientSGD(model, 0.1)
    with precision.autocast(chosen, CPU):
        loss = functional.cross_entropy(model(torch.randn(8, 6)), torch.zeros(8, dtype=torch.long))
    loss.backward()
    gradient = model.weight.grad
    assert gradient is not None and gradient.dtype is torch.float32
    rounded = gradient.to(torch.bfloat16).to(torch.float32)
    assert torch.equal(gradient, rounded) is (chosen is ComputePrecision.BFLOAT16)
    optimizer.detach()


LATER = [pytest.param(name, marks=pytest.mark.long) for name in ("tdnn", "lstm", "blstm")]


@pytest.mark.parametrize("model", ["dnn", *LATER])
@pytest.mark.parametrize("optimizer", ["sgd", "ng-sgd"])
def test_a_run_in_bfloat16_learns(
    prep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, optimizer: str
) -> None:
    flags = {"prep": str(prep), "model": model, "optimizer": optimizer}
    sets = [*SETS, "network.left=4", "network.right=4", "network.delay=0", "network.chunk=8"]
    accuracies = []
    for number in ("float32", "bfloat16"):
        out = tmp_path / number
        summary = train(load(None, [*sets, f"precision={number}"], flags), out)
        assert re.search(rf"device +cpu, computing in {number}", capsys.readouterr().out)
        assert {t.dtype for t in load_file(out / "model.safetensors").values()} == {torch.float32}
        assert summary.validation_accuracy is not None
        accuracies.append(summary.validation_accuracy)
    assert accuracies[1] > 2 / 30  # twice what a guess of 30 states gets
    assert abs(accuracies[1] - accuracies[0]) < 0.05
