"""Features against Kaldi's own vectors, and against a second implementation on other audio."""

from __future__ import annotations

import time

import numpy as np
import pytest

from unisono.speech.features.extractors import FeatureType, compute_features, fbank, mfcc, plp
from unisono.speech.features.spectrum import frame_count
from unisono.speech.features.transforms import add_deltas, apply_cmvn, apply_sliding_cmvn


def test_kaldis_vectors(kaldis_vectors: list[dict[str, np.ndarray]]) -> None:
    for kaldi in kaldis_vectors:
        samples, rate = kaldi["wav"].astype(np.float64), int(kaldi["rate"])
        mfccs = mfcc(samples, rate)
        made = {
            "fbank": (fbank(samples, rate), 5e-4),
            "mfcc": (mfccs, 2e-3),
            "mfcc_hires": (mfcc(samples, rate, ceps=40, bands=40, energy=False), 2e-3),
            "plp": (plp(samples, rate), 5e-4),
            "plp_deltas": (add_deltas(plp(samples, rate)), 5e-4),
            "mfcc_cmvn": (apply_cmvn([mfccs], variance=True)[0], 5e-4),
            "mfcc_sliding": (apply_sliding_cmvn(mfccs), 2e-3),
            "mfcc_sliding_center": (
                apply_sliding_cmvn(mfccs, window=100, centre=True, variance=True),
                5e-4,
            ),
        }
        for name, (ours, limit) in made.items():
            assert ours.shape == kaldi[name].shape, name
            assert np.abs(ours - kaldi[name]).max() < limit, name


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000])
def test_fbank_and_mfcc_against_a_second_implementation(rate: int) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    random = np.random.default_rng(rate)
    sweep = 8000 * np.sin(np.cumsum(np.linspace(0.01, 2.5, rate)))
    samples = np.round(sweep + random.normal(0, 50, rate)).astype(np.float32)
    for ours, options, maker in (
        (fbank(samples.astype(np.float64), rate), knf.FbankOptions(), knf.OnlineFbank),
        (mfcc(samples.astype(np.float64), rate), knf.MfccOptions(), knf.OnlineMfcc),
    ):
        options.frame_opts.samp_freq = rate
        options.frame_opts.dither = 0
        options.frame_opts.snip_edges = True
        if maker is knf.OnlineFbank:
            options.mel_opts.num_bins = 40
        online = maker(options)
        online.accept_waveform(rate, samples.tolist())
        online.input_finished()
        theirs = np.stack([online.get_frame(i) for i in range(online.num_frames_ready)])
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 5e-3


def test_deltas_of_a_parabola_are_its_derivatives() -> None:
    at = np.arange(30.0)[:, None]
    made = add_deltas(3 * at**2 - at)[4:-4]
    np.testing.assert_allclose(made[:, 1], 6 * at[4:-4, 0] - 1)
    np.testing.assert_allclose(made[:, 2], 6)


def test_speaker_normalisation_is_common_to_the_utterances() -> None:
    random = np.random.default_rng(1)
    pieces = [random.normal(5, 3, (n, 4)) for n in (7, 1, 30)]
    together = np.concatenate(apply_cmvn(pieces, variance=True))
    np.testing.assert_allclose(together.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(together.std(0), 1)
    difference = apply_cmvn(pieces)[0] - pieces[0]
    np.testing.assert_allclose(difference, difference[:1].repeat(7, 0))


@pytest.mark.parametrize("kind", sorted(set(FeatureType) - {FeatureType.KALDI}))
@pytest.mark.parametrize("samples", [0, 199, 200, 280, 1000])
def test_short_and_silent_audio(kind: FeatureType, samples: int) -> None:
    made = compute_features(kind, np.zeros(samples), 8000)
    assert len(made) == frame_count(samples, 8000) == max(0, (samples - 120) // 80)
    assert np.isfinite(made).all()


def test_fbank_is_hundreds_of_times_faster_than_speech() -> None:
    samples = np.random.default_rng(0).normal(0, 1000, 16000 * 30)
    fbank(samples[:16000], 16000)
    before = time.process_time()
    fbank(samples, 16000)
    assert 30 / (time.process_time() - before) > 100
