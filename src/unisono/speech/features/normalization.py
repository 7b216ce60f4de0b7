"""Features normalised by speaker, for the GMMs and for networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unisono.data import Corpus, Part
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.features.extraction import Frames, UtteranceFeatures
from unisono.speech.features.transforms import add_deltas

CmvnStats = tuple[NDArray[np.float64], NDArray[np.float64]]
_SMALLEST_STD = 1e-5
DELTA_FACTOR = 3
"""Dimensions of the GMM features per cepstrum: itself, delta and delta-delta."""


def cepstral_cmvn_stats(
    extracted: Sequence[tuple[Utterance, UtteranceFeatures]],
) -> dict[str, CmvnStats]:
    """Mean and standard deviation of each speaker's cepstra."""
    sums: dict[str, list[NDArray[np.float64]]] = {}
    for utterance, features in extracted:
        x = features.cepstra.astype(np.float64)
        own = [np.full(x.shape[1], float(len(x))), x.sum(0), (x**2).sum(0)]
        known = sums.setdefault(utterance.speaker, [np.zeros(x.shape[1]) for _ in own])
        sums[utterance.speaker] = [a + b for a, b in zip(known, own, strict=True)]
    stats = {}
    for name, (count, total, square) in sums.items():
        mean = total / count
        stats[name] = mean, np.sqrt(np.maximum(square / count - mean**2, _SMALLEST_STD**2))
    return stats


def gmm_features(cepstra: Frames, stats: CmvnStats) -> Frames:
    """GMM features: cepstra after CMVN by speaker, with deltas and delta-deltas."""
    mean, std = stats
    return add_deltas((cepstra - mean) / std).astype(np.float32)


def network_features(extracted: Sequence[tuple[Utterance, UtteranceFeatures]]) -> Iterator[Frames]:
    """Yields the network's features after CMVN by speaker."""
    stats = network_cmvn_stats(extracted)
    return (normalize(h.network, stats[u.speaker]) for u, h in extracted)


def network_cmvn_stats(
    extracted: Sequence[tuple[Utterance, UtteranceFeatures]],
) -> dict[str, tuple[Frames, Frames]]:
    """Mean and standard deviation of each speaker's features, as a PREP has them.

    One speaker's are in memory at a time.
    """
    own: dict[str, list[tuple[Utterance, UtteranceFeatures]]] = {}
    for utterance, features in extracted:
        own.setdefault(utterance.speaker, []).append((utterance, features))
    stats = {}
    for name, mine in own.items():
        corpus = Corpus(
            origin="speech",
            frames=np.concatenate([h.network for _, h in mine]),
            states=np.zeros(0, dtype=np.int64),
            starts=np.cumsum([0] + [len(h.network) for _, h in mine]),
            utterances=[u.id for u, _ in mine],
            speakers=[name] * len(mine),
            parts=[Part.TEST] * len(mine),
            state_count=1,
        )
        mean, std = corpus.speaker_moments()
        stats[name] = mean[0], std[0]
    return stats


def normalize(frames: Frames, stats: tuple[Frames, Frames]) -> Frames:
    """Applies mean and standard deviation to frames."""
    mean, std = stats
    return (frames - mean) / std
