"""Validations beside the training: what is scored, what is left out, what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from unisono.config import Config, load
from unisono.data import FrameSource, Part, Prep
from unisono.runs.directory import RunDirectory
from unisono.training import validator as module
from unisono.training.objective import FrameStates
from unisono.training.train import train
from unisono.training.validation import score
from unisono.training.validator import Validator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def sources(prep: Path) -> tuple[FrameSource, FrameSource]:
    opened = Prep.open(prep)
    return tuple(FrameSource(opened, part, context=0) for part in (Part.HELDOUT, Part.TRAIN))  # type: ignore[return-value]


@pytest.fixture
def make(sources: tuple[FrameSource, FrameSource]) -> Callable[..., Validator]:
    heldout, train_ = sources

    def validator(config: Config | None = None) -> Validator:
        return Validator(config or Config(), linear(heldout), heldout, train_, learners=1)

    return validator


def linear(source: FrameSource, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(source.dimension, source.prep.header.states)


def test_the_model_is_scored_as_it_was_when_it_was_taken(
    make: Callable[..., Validator], sources: tuple[FrameSource, FrameSource]
) -> None:
    heldout, train_ = sources
    validator, model = make(), linear(heldout, seed=1)
    expected = (
        score(FrameStates(), model, heldout, 0, CPU),
        score(FrameStates(), model, train_, len(heldout), CPU),
    )
    assert validator.can_start(skip=True)
    validator.start(model, 0.25, train=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # the training goes on
    done = validator.take()
    assert done is not None and done.progress == 0.25
    assert done.fields["logprob"] == pytest.approx(expected[0].logprob)
    assert done.fields["train_logprob"] == pytest.approx(expected[1].logprob)
    event = done.event()
    assert event["age_s"] >= event["seconds"] > 0
    assert validator.take() is None
    assert validator.can_start(skip=True)
    validator.start(model, 0.5, train=False)
    again = validator.take()
    assert again is not None and "train_logprob" not in again.fields
    validator.close()


def test_one_that_is_due_too_soon_is_left_out_or_waited_for(
    make: Callable[..., Validator],
    sources: tuple[FrameSource, FrameSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = threading.Event()
    real = module.score_groups

    def held(*arguments: object) -> object:
        assert free.wait(60)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "score_groups", held)
    monkeypatch.setattr(module, "MOST_WAITING", 0.0)
    validator, model = make(), linear(sources[0])
    assert validator.can_start(skip=True)
    validator.start(model, 0.1, train=False)
    assert not validator.can_start(skip=True)
    assert not validator.ready
    threading.Timer(0.2, free.set).start()
    assert validator.can_start(skip=False)
    assert validator.take() is not None
    validator.start(model, 0.2, train=False)
    second = validator.take()
    assert second is not None and second.stalled_s >= 0.1
    validator.close()


def test_a_fault_in_the_scoring_is_raised_in_the_training(
    make: Callable[..., Validator],
    sources: tuple[FrameSource, FrameSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "score_groups", fail)
    validator = make()
    assert validator.can_start(skip=True)
    validator.start(linear(sources[0]), 0.1, train=False)
    with pytest.raises(ZeroDivisionError):
        validator.take()


def test_a_run_is_validated_several_times_an_epoch(prep: Path, tmp_path: Path) -> None:
    sets = ["minibatch=64", "network.hidden=[16]", "network.context=0", "threads=1", "epochs=2"]
    train(load(None, sets, {"prep": str(prep)}), tmp_path / "run")
    events = RunDirectory(tmp_path / "run").read_metrics()
    assert events[0]["event"] == "start"
    checks = [e for e in events if e["event"] == "validation"]
    frames = Prep.open(prep).frames_of(Part.TRAIN)
    seen = sorted(check["global_examples"] for check in checks)
    assert seen[-1] == 2 * frames
    assert len(checks) > 2  # 16, less those that a busy machine had no time for
    for place in seen[:-1]:
        beyond = place % (frames // 8)  # validated after the minibatch that passes an eighth
        assert min(beyond, frames // 8 - beyond) <= 64 + 8
    with_train = [check["global_examples"] for check in checks if "train_logprob" in check]
    assert with_train and all(abs(place % frames) <= 64 for place in with_train)
    for check in checks:
        assert check["age_s"] >= 0 and check["stalled_s"] >= 0 and check["seconds"] > 0
