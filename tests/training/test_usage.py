from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unisono.config import load
from unisono.models import build
from unisono.training.train import train
from unisono.training.usage import operations

FRAMES = 500


@pytest.mark.parametrize("name", ["dnn", "tdnn"])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    """But for the gradient of the model's input, which nobody asks for."""
    model = build(name, seed=0, inputs=20, outputs=50, hidden=[40, 30])
    sides = getattr(model, "left", 0) + getattr(model, "right", 0)
    x = torch.randn(FRAMES, 20) if name == "dnn" else torch.randn(1, FRAMES + sides, 20)
    with FlopCounterMode(display=False) as counted:
        model(x).sum().backward()
    first = next(p for p in model.parameters() if p.dim() > 1)
    expected = operations(model, FRAMES) - 2 * first.numel() * FRAMES
    tolerance = 0.0 if name == "dnn" else 0.1  # frames around a chunk are computed, too
    assert counted.get_total_flops() == pytest.approx(expected, rel=tolerance)


def test_a_run_tells_what_it_computed(prep: Path, tmp_path: Path) -> None:
    sets = ["network.hidden=[8]", "epochs=1", "device=cpu", "threads=1"]
    config = load(None, sets, {"prep": str(prep)})
    summary = train(config, tmp_path / "run")
    weights = 8 * (11 * 20) + 8 * 30
    assert summary.operations_per_s == pytest.approx(6 * weights * summary.examples_per_s)
    assert 50e6 < summary.peak_memory < 20e9
