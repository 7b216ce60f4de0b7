"""Pitch against Kaldi's own vectors, and on tones whose pitch is known."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.speech.features.extractors import FeatureType, compute_features
from unisono.speech.features.pitch import compute_pitch, process_pitch


def test_kaldis_vectors(kaldis_vectors: list[dict[str, np.ndarray]]) -> None:
    for kaldi in kaldis_vectors:
        wanted = kaldi["pitch"].astype(np.float64)
        found = compute_pitch(kaldi["wav"].astype(np.float64), int(kaldi["rate"]))
        assert found.shape == wanted.shape
        relative = np.abs(found[:, 1] / wanted[:, 1] - 1)
        voiced = wanted[:, 0] >= 0.5
        assert (relative[voiced] < 1e-4).mean() >= 0.9
        assert relative[voiced].max() < 0.011
        assert relative.max() < 0.02
        assert np.abs(found[:, 0] - wanted[:, 0]).max() < 0.1
        assert np.abs(process_pitch(wanted) - kaldi["pitch_processed"]).max() < 1e-3


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100])
@pytest.mark.parametrize("hertz", [80.0, 140.0, 310.0])
def test_a_tone_has_its_pitch(rate: int, hertz: float) -> None:
    at = np.arange(rate) / rate
    tone = sum(3000 / k * np.sin(2 * np.pi * k * hertz * at) for k in range(1, 4))
    found = compute_pitch(tone, rate)[5:-10]
    assert np.median(np.abs(found[:, 1] / hertz - 1)) < 0.01
    assert np.median(found[:, 0]) > 0.9


def test_yu_and_dengs_dimensions() -> None:
    noise = np.random.default_rng(0).normal(0, 500, 16000)
    made = compute_features(FeatureType.PLP_PITCH, noise, 16000)
    assert made.shape == (98, 42)
    assert np.isfinite(made).all()
