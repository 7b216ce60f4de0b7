"""Pitch, as Kaldi finds it: normalised cross-correlation, and the smoothest path through it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from unisono.speech.features.spectrum import Array
from unisono.speech.features.transforms import add_deltas

_RATE = 4000
_WINDOW = 100
_SHIFT = 40
_LOWEST_HZ = 50.0
_HIGHEST_HZ = 400.0
_CUTOFF_HZ = 1000.0
_CUTOFF_ZEROS = 1
_LAG_ZEROS = 5
_LAG_STEP = 0.005
_BALLAST = 7000.0
_SOFT_LOWEST_HZ = 10.0
_PENALTY = 0.1
_FIRST_LAG = math.ceil(_RATE / _HIGHEST_HZ - _LAG_ZEROS / 2)
_LAST_LAG = math.floor(_RATE / _LOWEST_HZ + _LAG_ZEROS / 2)
_AROUND = 75


def compute_pitch(samples: Array, rate: int) -> Array:
    """Correlation and pitch in Hz of each frame: frames x 2.

    The audio is brought to 4 kHz. With x a frame's 100 samples less their mean and y the samples
    a lag later, the correlation is

        phi(lag) = x.y / sqrt(|x|^2 |y|^2 + ballast),

    taken at whole lags and interpolated to lags L_i that grow by 0.5% from 1/400 s to 1/50 s.
    The path of lags with the least sum of 1 - phi(L_i) (1 - 10 L_i), plus
    0.1 (log 1.005)^2 (i - j)^2 from frame to frame, is the pitch. The ballast lets quiet frames
    follow their neighbours; the correlation that is returned is the one without it.
    """
    wave = _resample(samples, rate)
    count = 0 if len(wave) < _WINDOW else (len(wave) - _WINDOW) // _SHIFT + 1
    if count == 0:
        return np.zeros((0, 2))
    inner, norm = _correlate(wave, count)
    power = np.mean(wave**2) - np.mean(wave) ** 2
    lags, weights = _lags()
    with np.errstate(divide="ignore", invalid="ignore"):
        steady = inner / np.sqrt(norm + _BALLAST * (power * _WINDOW) ** 2)
        plain = inner / np.sqrt(norm)
    steady, plain = np.nan_to_num(steady) @ weights, np.nan_to_num(plain) @ weights
    path = _smoothest(1 - steady * (1 - _SOFT_LOWEST_HZ * lags))
    return np.stack([plain[np.arange(count), path], 1 / lags[path]], axis=1)


def process_pitch(found: Array) -> Array:
    """Voicing feature, normalised log pitch and its difference: frames x 3.

    The log pitch is taken relative to its mean over 75 frames each side, weighted by how voiced
    they are.
    """
    correlation, log_pitch = np.clip(found[:, 0], -1, 1), np.log(found[:, 1])
    voicing = 2 * ((1.0001 - correlation) ** 0.15 - 1)
    n = np.abs(correlation)
    odds = -5.2 + 5.4 * np.exp(7.5 * (n - 1)) + 4.8 * n - 2 * np.exp(-10 * n)
    odds += 4.2 * np.exp(20 * (n - 1))
    voiced = 1 / (1 + np.exp(-odds))
    sums = np.concatenate([[[0.0, 0.0]], np.cumsum(np.stack([voiced, voiced * log_pitch], 1), 0)])
    at = np.arange(len(found))
    inside = sums[np.minimum(at + _AROUND + 1, len(found))] - sums[np.maximum(at - _AROUND, 0)]
    normalize = 2 * (log_pitch - inside[:, 1] / inside[:, 0])
    difference = 10 * add_deltas(log_pitch[:, None], 1)[:, 1]
    return np.stack([voicing, normalize, difference], axis=1)


def _correlate(wave: Array, count: int) -> tuple[Array, Array]:
    """Products of each frame with itself some samples later, and of their energies."""
    padded = np.concatenate([wave, np.zeros(_LAST_LAG)])
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW + _LAST_LAG)
    frames = frames[::_SHIFT][:count]
    frames = frames - frames[:, :_WINDOW].mean(1, keepdims=True)
    here = frames[:, :_WINDOW]
    own = np.einsum("ij,ij->i", here, here)
    inner, norm = (np.empty((count, _LAST_LAG + 1 - _FIRST_LAG)) for _ in range(2))
    for column, lag in enumerate(range(_FIRST_LAG, _LAST_LAG + 1)):
        later = frames[:, lag : lag + _WINDOW]
        inner[:, column] = np.einsum("ij,ij->i", here, later)
        norm[:, column] = own * np.einsum("ij,ij->i", later, later)
    return inner, norm


def _smoothest(costs: Array) -> NDArray[np.int64]:
    """The path of least cost: one lag a frame."""
    lags = np.arange(costs.shape[1])
    step = _PENALTY * math.log(1 + _LAG_STEP) ** 2 * (lags[:, None] - lags) ** 2
    back = np.empty(costs.shape, dtype=np.int64)
    forward = np.zeros(costs.shape[1])
    for t, cost in enumerate(costs):
        total = step + forward
        back[t] = total.argmin(1)
        forward = total[lags, back[t]] + cost
        forward -= forward.min()
    path = np.empty(len(costs), dtype=np.int64)
    path[-1] = forward.argmin()
    for t in range(len(costs) - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    return path


def _filter(at: Array, cutoff: float, zeros: int) -> Array:
    """A low-pass filter: a sinc with so many zeros each side, under a raised cosine."""
    window = 0.5 * (1 + np.cos(2 * np.pi * cutoff / zeros * at))
    return np.where(
        np.abs(at) < zeros / (2 * cutoff), window * 2 * cutoff * np.sinc(2 * cutoff * at), 0
    )


@lru_cache(maxsize=1)
def _lags() -> tuple[Array, Array]:
    """The lags in seconds, and the weights that interpolate whole lags to them."""
    lags = [1 / _HIGHEST_HZ]
    while lags[-1] * (1 + _LAG_STEP) <= 1 / _LOWEST_HZ:
        lags.append(lags[-1] * (1 + _LAG_STEP))
    whole = np.arange(_FIRST_LAG, _LAST_LAG + 1) / _RATE
    return np.array(lags), _filter(np.array(lags) - whole[:, None], _RATE / 2, _LAG_ZEROS) / _RATE


def _resample(samples: Array, rate: int) -> Array:
    """Audio at 4 kHz, with nothing above 1 kHz left."""
    common = math.gcd(rate, _RATE)
    take, give = rate // common, _RATE // common
    count = -(-len(samples) * give // take)
    reach = math.ceil(_CUTOFF_ZEROS / (2 * _CUTOFF_HZ) * rate) + 1
    padded = np.concatenate([np.zeros(reach), samples, np.zeros(reach + take)])
    made = np.empty(count)
    for phase in range(give):
        # Output samples of one phase lie `take` input samples apart, and share their weights.
        middle = phase * take // give
        at = np.arange(middle - reach, middle + reach + 1) / rate - phase / _RATE
        weights = _filter(at, _CUTOFF_HZ, _CUTOFF_ZEROS) / rate
        many = len(range(phase, count, give))
        pieces = np.lib.stride_tricks.sliding_window_view(padded[middle:], 2 * reach + 1)
        made[phase::give] = pieces[::take][:many] @ weights
    return made
