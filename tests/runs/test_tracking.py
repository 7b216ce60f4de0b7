"""Trackers: TensorBoard, those of other packages, and those that fail."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from unisono.config import load
from unisono.errors import UserError
from unisono.runs import tracking
from unisono.runs.directory import RunDirectory
from unisono.runs.tracking import FOLDER, Tracking, find_tracker
from unisono.training.train import train

SETS = ["network.hidden=[8]", "network.context=0", "epochs=1", "threads=1", "validation.every=4096"]


class Kept:
    """Keeps what it is told."""

    made: ClassVar[list[Kept]] = []

    def __init__(self, run: RunDirectory) -> None:
        self.run, self.closed = run, False
        self.figures: list[tuple[str, float, int]] = []
        Kept.made.append(self)

    def scalar(self, name: str, value: float, step: int) -> None:
        self.figures.append((name, value, step))

    def close(self) -> None:
        self.closed = True


class Broken(Kept):
    def scalar(self, name: str, value: float, step: int) -> None:
        raise ConnectionError("no route to host")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    Kept.made = []
    entries = EntryPoints(
        EntryPoint(name, f"{__name__}:{kind}", tracking.GROUP)
        for name, kind in (("kept", "Kept"), ("broken", "Broken"))
    )
    monkeypatch.setattr(tracking, "entry_points", lambda group: entries)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Kept.__module__])


@pytest.mark.parametrize("learners", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_tracker_of_another_package_is_told_the_figures(
    known: None, prep: Path, tmp_path: Path, learners: int
) -> None:
    config = load(None, [*SETS, "tracking=kept"], {"prep": str(prep), "learners": learners})
    summary = train(config, tmp_path / "run")
    (tracker,) = Kept.made
    assert tracker.run.path == tmp_path / "run" and tracker.closed
    names = {name for name, _, _ in tracker.figures}
    assert {"train/loss", "train/learning_rate", "heldout/logprob", "heldout/accuracy"} <= names
    scores = {step: value for name, value, step in tracker.figures if name == "heldout/logprob"}
    assert scores[max(scores)] == summary.validation_logprob
    assert max(scores) == summary.examples


def test_one_that_fails_is_told_once_and_ends_nothing(
    known: None, prep: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = load(None, [*SETS, "tracking=broken"], {"prep": str(prep)})
    assert train(config, tmp_path / "run").ended == "finished"
    said = capfd.readouterr().err
    assert said.count("tracking has failed") == 1 and "no route to host" in said


def test_one_that_does_not_exist_is_refused_before_anything_is_made(
    known: None, prep: Path, tmp_path: Path
) -> None:
    config = load(None, ["tracking=tensorbord"], {"prep": str(prep)})
    with pytest.raises(UserError, match="known are broken, kept, tensorboard"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install .unisono\[tensorboard\]"):
        find_tracker("tensorboard")


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = RunDirectory(tmp_path)
    followed = Tracking(find_tracker("tensorboard"), run, print)
    event: dict[str, Any] = {"event": "validation", "learner": 0, "accuracy": 0.5}
    for step in (100, 200):
        followed({**event, "logprob": -300 / step, "global_examples": step})
    followed.close()
    found = reader.EventAccumulator(str(tmp_path / FOLDER)).Reload().Scalars("heldout/logprob")
    assert [(scalar.step, scalar.value) for scalar in found] == [(100, -3.0), (200, -1.5)]


@pytest.mark.parametrize(("name", "kind"), [("wandb", "WandB"), ("mlflow", "MLflow")])
def test_the_examples_tell_their_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    service, example = MagicMock(), ModuleType("trackers")
    monkeypatch.setitem(sys.modules, name, service)
    file = Path(__file__).parents[2] / "examples" / "trackers.py"
    exec(compile(file.read_text(), file, "exec"), example.__dict__)
    run = RunDirectory.create(tmp_path / "run", load(None, [], {"prep": "x"}), resume=False)
    tracker = getattr(example, kind)(run)
    tracker.scalar("heldout/logprob", -2.0, 512)
    tracker.close()
    if name == "wandb":
        service.init().log.assert_called_once_with({"heldout/logprob": -2.0, "examples": 512})
        service.init().finish.assert_called_once_with()
    else:
        service.log_metric.assert_called_once_with("heldout/logprob", -2.0, step=512)
        service.end_run.assert_called_once_with()
