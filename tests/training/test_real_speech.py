"""Real speech, from audio to word error rates: minutes, so `make test-long`."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.config import load
from unisono.speech.prepare import PrepareOptions, TyingMethod, prepare
from unisono.training.decode import DecodeOptions, decode
from unisono.training.train import train

pytest.importorskip("kaldifst", reason="the speech extra is not installed")


def word_error_rate(
    shared: Path, corpus: str, tmp_path: Path, how: PrepareOptions, order: int
) -> float:
    data = shared / "data" / corpus
    prep = tmp_path / "prep"
    if not prep.exists():
        prepare(data / "train", data / "lexicon.txt", prep, how, print)
    out = tmp_path / f"decoded-{order}"
    score = decode(prep, data / "test", out, DecodeOptions(order=order, processes=2), print)
    assert score is not None
    print("\n".join(score.lines()))
    return score.errors.rate


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_monophones_on_an4(shared: Path, tmp_path: Path) -> None:
    how = PrepareOptions(processes=2, tying=TyingMethod.NONE)
    assert word_error_rate(shared, "an4", tmp_path, how, 1) <= 0.135
    assert word_error_rate(shared, "an4", tmp_path, how, 2) <= 0.10


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_tied_states_on_an4(shared: Path, tmp_path: Path) -> None:
    how = PrepareOptions(processes=2)
    assert word_error_rate(shared, "an4", tmp_path, how, 1) <= 0.12
    assert word_error_rate(shared, "an4", tmp_path, how, 2) <= 0.09


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_network_on_digits_at_8_khz(shared: Path, tmp_path: Path) -> None:
    data = shared / "data" / "fsdd"
    prep, run = tmp_path / "prep", tmp_path / "run"
    prepare(data / "train", data / "lexicon.txt", prep, PrepareOptions(processes=2), print)
    train(load(None, [], {"prep": str(prep), "learners": "2"}), run)
    score = decode(run, data / "test", tmp_path / "out", DecodeOptions(processes=2), print)
    assert score is not None and score.errors.rate <= 0.11
