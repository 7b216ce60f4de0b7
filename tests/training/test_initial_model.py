"""`--init RUN`: training starts from another run's model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.trainings import train_with_forks
from unisono.config import Config, load
from unisono.data import synthesise
from unisono.errors import UserError
from unisono.learner.checkpoint_files import checkpoints, read_part
from unisono.runs.directory import RunDirectory
from unisono.training import train as training
from unisono.training.initial_model import read_initial
from unisono.training.train import train

SMALL = ["network.hidden=[16]", "epochs=1", "threads=1", "checkpoint.every=8192"]
STILL = ["rate.start=1e-30"]
"""A learning rate at which float32 parameters of ordinary size stay as they are."""


def config(prep: Path, *sets: str, init: Path | None = None) -> Config:
    flags = {"prep": str(prep), "init": None if init is None else str(init)}
    return load(None, [*SMALL, *sets], flags)


@pytest.fixture(scope="module")
def first(prep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, of two learners."""
    out = tmp_path_factory.mktemp("first") / "run"
    sets = ["learners=2", "strategy.sharding=static", "strategy.every=4096"]
    train_with_forks(config(prep, *sets), out)
    return out


@pytest.fixture
def unended(first: Path, tmp_path: Path) -> Path:
    """The same before its end."""
    copy = tmp_path / "unended"
    shutil.copytree(first, copy)
    for name in ("model.safetensors", "model.json", "summary.json"):
        (copy / name).unlink()
    return copy


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    "sets",
    [
        [],
        pytest.param(["learners=2", "strategy.sharding=static"], marks=pytest.mark.long),
        pytest.param(["learners=2", "strategy.name=server"], marks=pytest.mark.long),
    ],
)
def test_training_starts_from_the_final_model(
    sets: list[str], first: Path, prep: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """At a rate that moves nothing the final model is the one it began with, and not a new one."""
    out = RunDirectory(tmp_path / "run")
    summary = train(config(prep, *STILL, *sets, "optimizer=sgd", init=first), out.path)
    assert_same(load_file(out.model), load_file(RunDirectory(first).model))
    assert out.read_config().init == str(first)
    earlier = RunDirectory(first).read_summary()
    assert earlier is not None and earlier.validation_logprob is not None
    assert summary.validation_logprob == pytest.approx(earlier.validation_logprob, abs=1e-6)
    assert f"initial    the model of {first}" in " ".join(capfd.readouterr().out.split("\n"))


def test_a_run_that_did_not_end_gives_the_mean_of_its_newest_checkpoint(
    unended: Path, prep: Path
) -> None:
    newest = checkpoints(unended / "checkpoints")[-1]
    parts = [read_part(newest, number)["model"] for number in range(2)]
    found = read_initial(config(prep, init=unended))
    assert_same(found, {name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0]})


def test_a_damaged_newest_checkpoint_is_passed_over(unended: Path, prep: Path) -> None:
    before, newest = checkpoints(unended / "checkpoints")
    (newest / "learner-1.json").write_text("{}")
    wanted = [read_part(before, number)["model"] for number in range(2)]
    found = read_initial(config(prep, init=unended))
    assert_same(found, {name: (wanted[0][name] + wanted[1][name]) / 2 for name in found})


def test_resuming_does_not_read_it_again(
    first: Path, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a checkpoint nor before the first one; the other run may be gone."""
    gone = tmp_path / "gone"
    shutil.copytree(first, gone)
    out = RunDirectory(tmp_path / "run")
    settings = config(prep, init=gone)
    train(settings, out.path)
    shutil.rmtree(gone)
    again = settings.model_copy(update={"epochs": 2})
    trained = read_part(checkpoints(out.checkpoints)[-1], 0)["model"]
    monkeypatch.setattr(training, "read_initial", None)
    train(again.model_copy(update={"rate": config(prep, *STILL).rate}), out.path, resume=True)
    assert_same(load_file(out.model), trained)
    for folder in checkpoints(out.checkpoints):
        shutil.rmtree(folder)
    out.summary.unlink()
    train(settings.model_copy(update={"rate": config(prep, *STILL).rate}), out.path, resume=True)
    assert_same(load_file(out.model), load_file(RunDirectory(first).model))


def test_resuming_cannot_change_it(first: Path, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(config(prep), out)
    with pytest.raises(UserError, match=r"was trained with init = ; --resume cannot change it to"):
        train(config(prep, init=first), out, resume=True)


def refusal(settings: Config, out: Path) -> str:
    with pytest.raises(UserError) as caught:
        train(settings, out)
    assert not out.exists()
    text = str(caught.value)
    assert text.startswith("--init: ") and "\n" not in text
    return text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("network.hidden=[17]", "network.hidden is [16] there and [17] here"),
        ("network.hidden=[16,16]", "network.hidden is [16] there and [16, 16] here"),
        ("network.context=4", "network.context is 5 there and 4 here"),
        ("network.batch_norm=true", "network.batch_norm is False there and True here"),
        ("model=tdnn", "it is a dnn, and this run trains a tdnn"),
    ],
)
def test_another_model_is_one_line(
    change: str, reason: str, first: Path, prep: Path, tmp_path: Path
) -> None:
    text = refusal(config(prep, change, init=first), tmp_path / "run")
    assert text == f"--init: the model of {first} does not fit this run: {reason}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dimension": 13}, "its features have 20 dimensions, those of {prep} 13"),
        ({"states": 31}, "its data has 30 states, and {prep} has 31"),
    ],
)
def test_other_data_is_one_line(
    change: dict[str, int], reason: str, first: Path, tmp_path: Path
) -> None:
    other = tmp_path / "prep"
    synthesise(
        other,
        speakers=4,
        utterances_per_speaker=4,
        frames_per_utterance=60,
        states=change.get("states", 30),
        dimension=change.get("dimension", 20),
        seed=0,
        noise=1.0,
    )
    text = refusal(config(other, init=first), tmp_path / "run")
    assert text.endswith(f"does not fit this run: {reason.format(prep=other)}")
    lost = tmp_path / "first"
    shutil.copytree(first, lost)
    file = RunDirectory(lost).config
    file.write_text(file.read_text().replace("/prep", "/nowhere"))
    text = refusal(config(other, init=lost), tmp_path / "run")
    assert " there and " in text  # The data is gone: the first tensor that differs.


def test_a_missing_run_is_one_line(unended: Path, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    text = refusal(config(prep, init=tmp_path / "none"), out)
    assert text == f"--init: {tmp_path / 'none'} is not a run: no such directory"
    for folder in checkpoints(unended / "checkpoints"):
        shutil.rmtree(folder)
    text = refusal(config(prep, init=unended), out)
    assert text == f"--init: {unended} has neither a final model nor a checkpoint"
    RunDirectory(unended).model.write_bytes(b"no tensors")
    text = refusal(config(prep, init=unended), out)
    assert text.startswith(f"--init: the model of {unended} is broken: ")
