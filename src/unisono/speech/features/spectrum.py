"""Frames of audio, their power spectra and mel bands, as Kaldi makes them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHIFT_S = 0.010
WINDOW_S = 0.025
_PREEMPHASIS = 0.97
_LOWEST_HZ = 20.0
# Kaldi's floor under a logarithm: the float32 epsilon.
TINY = float(np.finfo(np.float32).eps)
# Spectra are made this many frames at a time, so that a long recording needs little memory.
_BLOCK = 4096


def frame_count(samples: int, rate: int) -> int:
    """How many whole windows fit into so many samples."""
    window, shift = _sizes(rate)
    return 0 if samples < window else 1 + (samples - window) // shift


def frame_shift(rate: int) -> float:
    """The seconds from frame to frame: 10 ms, less the part of a sample that is left over."""
    return _sizes(rate)[1] / rate


def spectra(samples: Array, rate: int, bank: Array) -> tuple[Array, Array]:
    """Mel energies and log energy of each frame.

    A frame is 25 ms every 10 ms; its mean is removed, which gives the log energy; then
    x[i] - 0.97 x[i - 1] (x[0] is its own predecessor), the window
    (0.5 - 0.5 cos(2 pi i / (n - 1))) ** 0.85, zeros up to a power of two, and |FFT|^2.

    Args:
        samples: At the scale of 16-bit integers.
        rate: Their rate in Hz.
        bank: Weights of the FFT's bins in each band, as `mel_bank` returns.

    Returns:
        Energies, frames x bands, and log energies, one a frame.
    """
    window, shift = _sizes(rate)
    count = frame_count(len(samples), rate)
    size = _fft_size(rate)
    energies, loudness = np.empty((count, bank.shape[1])), np.empty(count)
    if count == 0:
        return energies, loudness
    views = np.lib.stride_tricks.sliding_window_view(samples, window)[::shift]
    shape = _povey(window)
    for first in range(0, count, _BLOCK):
        frames = views[first : first + _BLOCK] - views[first : first + _BLOCK].mean(
            1, keepdims=True
        )
        part = slice(first, first + len(frames))
        loudness[part] = np.log(np.maximum(np.einsum("ij,ij->i", frames, frames), TINY))
        emphasised = frames - _PREEMPHASIS * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        bins = np.fft.rfft(emphasised * shape, size)[:, : size // 2]
        energies[part] = (bins.real**2 + bins.imag**2) @ bank
    return energies, loudness


@lru_cache(maxsize=16)
def mel_bank(rate: int, bands: int) -> Array:
    """Triangles, evenly spaced in mel from 20 Hz to half the rate: FFT bins x bands."""
    size = _fft_size(rate)
    edges = _edges(rate, bands)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    at = _mel(np.arange(size // 2, dtype=np.float64) * rate / size)[:, None]
    rising, falling = (at - left) / (centre - left), (right - at) / (right - centre)
    return np.maximum(np.minimum(rising, falling), 0.0)


@lru_cache(maxsize=16)
def band_centres(rate: int, bands: int) -> Array:
    """The middle of each mel band, in Hz."""
    return 700.0 * (np.exp(_edges(rate, bands)[1:-1] / 1127.0) - 1.0)


def _edges(rate: int, bands: int) -> Array:
    ends = _mel(np.array([_LOWEST_HZ, rate / 2]))
    return np.asarray(ends[0] + np.arange(bands + 2) * (ends[1] - ends[0]) / (bands + 1))


def _mel(hertz: Array) -> Array:
    return np.asarray(1127.0 * np.log(1.0 + hertz / 700.0))


def _sizes(rate: int) -> tuple[int, int]:
    """Samples of a window and of a shift."""
    return int(rate * WINDOW_S), int(rate * SHIFT_S)


def _fft_size(rate: int) -> int:
    return 1 << (_sizes(rate)[0] - 1).bit_length()


@lru_cache(maxsize=16)
def _povey(window: int) -> Array:
    turn = 2 * np.pi * np.arange(window) / (window - 1)
    return np.asarray((0.5 - 0.5 * np.cos(turn)) ** 0.85)
