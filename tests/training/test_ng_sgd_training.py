"""`--optimizer ng-sgd`: its keys arrive, it trains, it says what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from unisono.config import load
from unisono.optim import NaturalGradientSGD
from unisono.training.builders import make_optimizer
from unisono.training.train import train


def test_every_key_arrives() -> None:
    keys = {
        "rank_in": 3,
        "rank_out": 5,
        "update_period": 2,
        "num_samples_history": 500.0,
        "alpha": 2.0,
        "max_change": 0.1,
        "max_change_output": 0.2,
        "max_change_total": 0.3,
    }
    sets = [f"natural_gradient.{key}={value}" for key, value in keys.items()]
    config = load(
        None, [*sets, "rate.momentum=0.5", "rate.weight_decay=0.1"], {"optimizer": "ng-sgd"}
    )
    assert config.natural_gradient.model_dump() == keys
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 3))
    optimizer = make_optimizer(config, model, 0.25)
    assert isinstance(optimizer, NaturalGradientSGD)
    group = optimizer.param_groups[0]
    wanted = {"lr": 0.25, "momentum": 0.5, "weight_decay": 0.1, "max_change": 0.1}
    assert {key: group[key] for key in wanted} == wanted
    assert optimizer.param_groups[1]["max_change"] == 0.2
    assert optimizer.max_change_total == 0.3
    model(torch.randn(64, 30)).square().mean().backward()
    fisher = optimizer.state_dict()["fisher"][0]
    assert [len(fisher[side]["basis"]) for side in ("input", "output")] == [3, 5]


def test_a_run_learns_and_says_what_it_preconditions(
    prep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["network.hidden=[64]", "epochs=1", "threads=1", "minibatch=128", "device=cpu"]
    flags = {"prep": str(prep), "optimizer": "ng-sgd"}
    summary = train(load(None, sets, flags), tmp_path / "run")
    assert summary.optimizer == "ng-sgd"
    assert summary.validation_accuracy is not None
    assert summary.validation_accuracy > 0.5
    out = capsys.readouterr().out
    assert re.search(r"ng-sgd +layers.0: 220 inputs, 64 outputs, ranks 20 and 32", out)
    assert re.search(r"(ng-sgd)? +layers.2: 64 inputs, 30 outputs, ranks 20 and 15", out)
