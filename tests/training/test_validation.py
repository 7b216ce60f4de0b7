"""Scores, against sums by hand; the halves of the held-out speakers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.config import load
from unisono.data import Corpus, FrameSource, Part, Prep, halve, write_prep
from unisono.errors import UserError
from unisono.training.objective import FrameStates
from unisono.training.train import check, made, train
from unisono.training.validation import Score, halves, merge, score, score_groups

CPU = torch.device("cpu")
STATES = FrameStates()


@pytest.fixture(scope="module")
def source(prep: Path) -> FrameSource:
    return FrameSource(Prep.open(prep), Part.HELDOUT, context=0)


@pytest.fixture(scope="module")
def model(source: FrameSource) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(source.dimension, source.prep.header.states)


def test_a_score_is_the_mean_over_all_frames(source: FrameSource, model: torch.nn.Module) -> None:
    x, y = source.batch(np.arange(len(source)))
    with torch.no_grad():
        logits = model(x).double()
    expected = logits.log_softmax(1)[torch.arange(len(y)), y].mean()
    found = score(STATES, model, source, 0, CPU)
    assert found.logprob == pytest.approx(float(expected), abs=1e-6)
    assert found.accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    assert found.frames == len(source)


def test_groups_are_scored_apart_and_together_are_the_whole(
    source: FrameSource, model: torch.nn.Module
) -> None:
    group = halves(source)
    for examples in (0, 777):
        apart = score_groups(STATES, model, source, group, examples, CPU)
        together, whole = merge(apart), score(STATES, model, source, examples, CPU)
        assert together.frames == whole.frames
        assert together.logprob == pytest.approx(whole.logprob)
        assert together.accuracy == pytest.approx(whole.accuracy)
    for number, part in enumerate(score_groups(STATES, model, source, group, 0, CPU)):
        x, y = source.batch(np.flatnonzero(group == number))
        with torch.no_grad():
            expected = -torch.nn.functional.cross_entropy(model(x).double(), y)
        assert part.logprob == pytest.approx(float(expected), abs=1e-6)


def test_no_frame_has_no_score() -> None:
    nothing = Score(math.nan, math.nan, 0, 0)
    assert merge([nothing, Score(-2.0, 0.5, 4, 4)]) == Score(-2.0, 0.5, 4, 4)
    assert math.isnan(merge([nothing]).logprob)


def test_halves_are_whole_speakers(source: FrameSource) -> None:
    table, starts = source.prep.table, source.prep.starts
    group, at = halves(source), 0
    found: dict[str, set[int]] = {}
    for u in source.utterances:
        length = int(starts[u + 1] - starts[u])
        speaker = table.speakers[table.speaker[u]]
        found.setdefault(speaker, set()).update(group[at : at + length].tolist())
        at += length
    assert at == len(group)
    choosing, reporting = halve(found)
    assert found == {name: {0} for name in choosing} | {name: {1} for name in reporting}


def test_without_held_out_speakers_one_says_so_before_a_run_is_made(tmp_path: Path) -> None:
    corpus = Corpus(
        origin="noise",
        frames=np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32),
        states=np.arange(400) % 3,
        starts=np.array([0, 400]),
        utterances=["u"],
        speakers=["s"],
        parts=[Part.TRAIN],
        state_count=3,
    )
    write_prep(tmp_path / "prep", corpus, {})
    settings = {"prep": str(tmp_path / "prep")}
    with pytest.raises(UserError, match="--validation none"):
        train(load(None, [], settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check(load(None, ["validation.on=none"], settings))


def test_a_run_that_fails_before_it_trains_leaves_nothing(tmp_path: Path) -> None:
    config = load(None, [], {})
    with pytest.raises(RuntimeError), made(tmp_path / "run", config, resume=False):
        raise RuntimeError
    assert not (tmp_path / "run").exists()
