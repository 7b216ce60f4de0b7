"""A model of another package, found by its entry point, trained by `unisono train`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from support.commands import Command
from unisono.config import load
from unisono.data import Part, Prep
from unisono.errors import UserError
from unisono.models import Model, Takes
from unisono.training.builders import shape_of, source_of

MODULE = '''
import torch
from unisono.models import Model, Takes

class Window(torch.nn.Module):
    """A linear classifier of the frames from `left` before to `right` behind."""
    def __init__(self, *, inputs, outputs, after, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.left, self.right = 2, after
        self.convolution = torch.nn.Conv1d(inputs, outputs, 3 + after)

    def forward(self, x):
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)

WINDOW = Model(
    build=Window, takes=Takes.CHUNKS, description="a toy", options={"after": "delay"}
)
'''
ENTRY_POINTS = """
[unisono.models]
window = own_models:WINDOW
"""


def test_a_chunk_model_of_another_package_is_trained(
    start: Callable[..., Command], prep: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    metadata = site / "own_models-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "own_models.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-models\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    sets = ["device=cpu", "threads=1", "network.chunk=20", "network.delay=1", "epochs=1"]
    words = ["--model", "window", *(word for each in sets for word in ("--set", each))]
    command = start("train", prep, "--out", "run", *words, environment={"PYTHONPATH": paths})
    assert command.wait() == 0, command.output()
    described = json.loads((tmp_path / "run" / "model.json").read_text())
    assert described["model"] == "window"
    assert described["after"] == 1 and described["chunk"] == 20
    assert "hidden" not in described and "dropout" not in described
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validation_accuracy"] > 0.2  # one of 30 states by chance


def test_what_does_not_fit_the_configuration_is_refused(
    prep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {
        "unknown": Model(build=nn.Linear, takes=Takes.CHUNKS, description="", options={"a": "b"}),
        "bare": Model(build=nn.Linear, takes=Takes.CHUNKS, description=""),
    }
    monkeypatch.setattr("unisono.training.builders.find", models.__getitem__)
    data = Prep.open(prep)
    unknown, bare = (load(None, [], {"model": name}) for name in models)
    with pytest.raises(UserError, match=r"model unknown: \[network\] has no key 'b'"):
        shape_of(unknown, data)
    assert shape_of(bare, data) == {"inputs": 20, "outputs": 30}
    with pytest.raises(UserError, match="model bare takes chunks, but has no attributes left"):
        source_of(bare, data, Part.TRAIN, nn.Linear(20, 30), None)
