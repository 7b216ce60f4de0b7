"""Models by name: ours, and one that another package brings."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch
from torch import Tensor, nn

from unisono.config import NetworkConfig
from unisono.errors import UserError
from unisono.models import DNN, Model, Takes, build, find, names

OURS = ["dnn", "tdnn", "lstm", "blstm"]


class Mean(nn.Module):
    """The mean of three frames, and a linear layer."""

    def __init__(self, *, inputs: int, outputs: int, hidden: list[int], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.last = nn.Linear(inputs, outputs)
        self.left = self.right = 1
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last((x[:, :-2] + x[:, 1:-1] + x[:, 2:]) / 3)
        return logits


MEAN = Model(build=Mean, takes=Takes.CHUNKS, description="a toy", options={"hidden": "hidden"})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if packages with entry points were installed."""

    def entry_points(group: str) -> EntryPoints:
        assert group == "unisono.models"
        values = {"mean": "MEAN", "dnn": "MEAN", "broken": "Mean", "absent": "NOTHING"}
        found = [EntryPoint(name, f"{__name__}:{v}", group) for name, v in values.items()]
        return EntryPoints([*found, EntryPoint("lost", "no_such_package:MODEL", group)])

    monkeypatch.setattr("unisono.models.registry.entry_points", entry_points)


def test_ours_have_names_and_what_an_example_is() -> None:
    assert names() == OURS
    assert [name for name in OURS if find(name).takes is Takes.FRAMES] == ["dnn"]
    assert isinstance(build("dnn", inputs=4, outputs=3, hidden=[8], seed=1), DNN)


@pytest.mark.parametrize("name", OURS)
def test_options_are_keywords_of_the_model_and_keys_of_the_configuration(name: str) -> None:
    model = find(name)
    keywords = inspect.signature(model.build).parameters.keys()
    assert keywords == {"inputs", "outputs", "seed", *model.options}
    assert set(model.options.values()) <= NetworkConfig.model_fields.keys()
    assert model.description and "\n" not in model.description


def test_a_model_of_another_package_is_found_by_its_name(installed: None) -> None:
    assert names() == [*OURS, "absent", "broken", "lost", "mean"]
    assert find("mean") is MEAN
    assert find("dnn").build is DNN  # ours cannot be replaced
    made = build("mean", inputs=4, outputs=3, hidden=[1], seed=0)
    assert made(torch.zeros(2, 7, 4)).shape == (2, 5, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meen", "there is no model 'meen'; did you mean 'mean'"),
        ("zzz", "choose one of: dnn, tdnn, lstm, blstm"),
        ("broken", "not a unisono.models.Model"),
        ("absent", "NOTHING"),
        ("lost", "no_such_package"),
    ],
)
def test_what_is_not_a_model_is_refused(installed: None, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        find(name)
    assert "\n" not in str(caught.value)
