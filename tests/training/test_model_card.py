"""The model card of a run says what the run's other files say."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from unisono.config import load
from unisono.data import Part, Prep
from unisono.runs.directory import RunDirectory
from unisono.training.train import train


def rows_of(card: str) -> dict[str, str]:
    lines = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1] for cells in lines if len(cells) == 2}


def test_a_run_has_a_model_card(prep: Path, tmp_path: Path) -> None:
    sets = ["network.hidden=[16]", "epochs=1", "threads=1"]
    run = RunDirectory(tmp_path / "run")
    summary = train(load(None, sets, {"prep": str(prep)}), run.path)
    card = run.model_card.read_text()
    rows = rows_of(card)
    parameters = sum(tensor.numel() for tensor in load_file(run.model).values())
    assert rows["model"] == f"dnn, {parameters:,} parameters"
    data = Prep.open(prep)
    assert rows["training data"].startswith(f"{data.frames_of(Part.TRAIN):,} frames")
    assert "80 utterances of 8 speakers" in rows["training data"]
    assert "20 utterances of 2 speakers" in rows["held-out data"]
    assert rows["data fingerprint"] == data.fingerprint
    assert rows["learners"] == "1, solo, sgd"
    assert summary.validation_logprob is not None
    assert rows["held-out log-prob"] == f"{summary.validation_logprob:.3f} a frame"
    assert "Recognizer" not in card, "frames without speech cannot be recognised from audio"


def test_what_was_not_measured_is_not_made_up(prep: Path, tmp_path: Path) -> None:
    sets = ["network.hidden=[16]", "epochs=1", "threads=1", "validation.on=none"]
    run = RunDirectory(tmp_path / "run")
    train(load(None, sets, {"prep": str(prep)}), run.path)
    rows = rows_of(run.model_card.read_text())
    assert rows["held-out data"] == "none" and rows["held-out log-prob"] == "not measured"
