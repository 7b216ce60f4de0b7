"""Features of an utterance: filterbank, MFCC and PLP, as Kaldi makes them."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from unisono.speech.features.pitch import compute_pitch, process_pitch
from unisono.speech.features.spectrum import TINY, Array, band_centres, mel_bank, spectra
from unisono.speech.features.transforms import add_deltas

_LIFTER = 22
_CEPSTRA = 13
_MOST_CEPSTRA = 20
_LPC_ORDER = 12
_COMPRESSION = 0.33333


class FeatureType(str, Enum):
    """The input features of a network."""

    FBANK = "fbank"
    MFCC = "mfcc"
    PLP = "plp"
    PLP_PITCH = "plp-pitch"
    KALDI = "kaldi"
    """Precomputed: archives that `feats.scp` of a data directory points to."""


def compute_features(kind: FeatureType, samples: Array, rate: int) -> Array:
    """Computes the features of an utterance: frames x dimensions; `KALDI` cannot be computed."""
    makers = {
        FeatureType.FBANK: fbank,
        FeatureType.MFCC: mfcc,
        FeatureType.PLP: plp,
        FeatureType.PLP_PITCH: plp_pitch,
    }
    return makers[kind](samples, rate)


def neighbour_correlation(features: NDArray[np.float32]) -> float:
    """The mean correlation of neighbouring dimensions.

    Log filterbank energies have 0.7 and more, because neighbouring bands overlap; cepstra, with
    or without deltas and pitch, less than 0.35, because the DCT decorrelates them.
    """
    if features.shape[1] < 2:
        return 0.0
    x = features - features.mean(0)
    x /= np.maximum(x.std(0), TINY)
    return float((x[:, 1:] * x[:, :-1]).mean())


def to_cepstra(features: NDArray[np.float32], *, bands: bool) -> NDArray[np.float32]:
    """Cepstra for the GMMs from precomputed features.

    Args:
        features: Frames x D.
        bands: Whether they are log filterbank energies, whose first 13 DCT coefficients are
            used. Otherwise they are cepstra: up to 20 dimensions are all used, of more
            (high-resolution cepstra, or deltas appended) the first 13.
    """
    size = features.shape[1]
    if bands:
        return np.asarray(features @ _dct(size, min(size, _CEPSTRA)).astype(np.float32))
    return features if size <= _MOST_CEPSTRA else features[:, :_CEPSTRA]


def fbank(samples: Array, rate: int, *, bands: int = 40) -> Array:
    """Log energies of mel bands."""
    energies, _ = spectra(samples, rate, mel_bank(rate, bands))
    return np.asarray(np.log(np.maximum(energies, TINY)))


def mfcc(
    samples: Array, rate: int, *, ceps: int = 13, bands: int = 23, energy: bool = True
) -> Array:
    """Mel cepstra: the DCT of log mel energies, liftered.

    Args:
        samples: At the scale of 16-bit integers.
        rate: Their rate in Hz.
        ceps: Cepstra, at most `bands`.
        bands: Mel bands.
        energy: Whether the first column is the frame's log energy instead of C0.
    """
    energies, loudness = spectra(samples, rate, mel_bank(rate, bands))
    cepstra = np.log(np.maximum(energies, TINY)) @ _dct(bands, ceps) * _lifter(ceps)
    if energy:
        cepstra[:, 0] = loudness
    return np.asarray(cepstra)


def plp(samples: Array, rate: int, *, ceps: int = 13, bands: int = 23) -> Array:
    """Perceptual linear prediction; the first column is the frame's log energy.

    Mel energies, weighted by equal loudness and compressed by the cube root, are taken as half
    of a symmetric power spectrum (the outermost bands twice). Its inverse transform is an
    autocorrelation r_0..r_12; Durbin's recursion finds the all-pole model a_1..a_12 of it, whose
    cepstrum follows without another transform:

        c_i = -a_i - (1 / i) sum_{j < i} (i - j) a_j c_{i - j}
    """
    energies, loudness = spectra(samples, rate, mel_bank(rate, bands))
    extracted = (energies * _equal_loudness(rate, bands)) ** _COMPRESSION
    extracted = np.concatenate([extracted[:, :1], extracted, extracted[:, -1:]], axis=1)
    predictor = _durbin(np.maximum(extracted, TINY) @ _inverse_transform(bands + 2))
    cepstra = np.empty((len(extracted), ceps))
    cepstra[:, 0] = loudness
    for i in range(1, ceps):
        tail = sum((i - j) * predictor[:, j - 1] * cepstra[:, i - j] for j in range(1, i))
        cepstra[:, i] = -predictor[:, i - 1] - tail / i
    cepstra[:, 1:] *= _lifter(ceps)[1:]
    return cepstra


def plp_pitch(samples: Array, rate: int) -> Array:
    """PLP and normalised log pitch, with first and second differences: 42 dimensions."""
    spoken = plp(samples, rate)
    sung = process_pitch(compute_pitch(samples, rate))[: len(spoken), 1:2]
    return add_deltas(np.concatenate([spoken[: len(sung)], sung], axis=1))


def _durbin(correlation: Array) -> Array:
    """Solves for the predictor of each row's autocorrelation, order by order."""
    order = correlation.shape[1] - 1
    error = correlation[:, 0].copy()
    predictor = np.zeros((len(correlation), order))
    for i in range(order):
        known = predictor[:, :i].copy()
        reflected = correlation[:, i + 1] + np.einsum(
            "tj,tj->t", known, correlation[:, i:0:-1] if i else known
        )
        reflected = reflected / error
        error *= np.maximum(1 - reflected**2, 1e-5)
        predictor[:, i] = -reflected
        predictor[:, :i] = known - reflected[:, None] * known[:, ::-1]
    return predictor


@lru_cache(maxsize=16)
def _dct(bands: int, ceps: int) -> Array:
    """Orthonormal cosines, bands x cepstra."""
    angles = np.pi / bands * np.outer(np.arange(bands) + 0.5, np.arange(ceps))
    matrix = np.sqrt(2.0 / bands) * np.cos(angles)
    matrix[:, 0] = np.sqrt(1.0 / bands)
    return np.asarray(matrix)


@lru_cache(maxsize=16)
def _lifter(ceps: int) -> Array:
    return np.asarray(1.0 + 0.5 * _LIFTER * np.sin(np.pi * np.arange(ceps) / _LIFTER))


@lru_cache(maxsize=16)
def _equal_loudness(rate: int, bands: int) -> Array:
    """How loud equal energies seem at each band's middle."""
    square = band_centres(rate, bands) ** 2
    return np.asarray((square / (square + 1.6e5)) ** 2 * (square + 1.44e6) / (square + 9.61e6))


@lru_cache(maxsize=16)
def _inverse_transform(bands: int) -> Array:
    """From half a symmetric spectrum to its autocorrelation: bands x (order + 1)."""
    angles = np.pi / (bands - 1) * np.outer(np.arange(bands), np.arange(_LPC_ORDER + 1))
    twice = np.full((bands, 1), 2.0)
    twice[[0, -1]] = 1.0
    return np.asarray(twice * np.cos(angles) / (2 * (bands - 1)))
