"""Features of many utterances, by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.data import Corpus, Part
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason, Exclusions
from unisono.speech.features.audio import AudioReader, Samples, UtteranceError
from unisono.speech.features.extractors import FeatureType, compute_features, mfcc, to_cepstra
from unisono.speech.features.frame_store import FrameStore
from unisono.speech.features.kaldi_archives import KaldiFeatureReader
from unisono.speech.features.transforms import add_deltas
from unisono.speech.worker_pool import WorkerPool

Frames = NDArray[np.float32]
CmvnStats = tuple[NDArray[np.float64], NDArray[np.float64]]
_LOG_EVERY = 1000
_SMALLEST_STD = 1e-5
DELTA_FACTOR = 3
"""Dimensions of the GMM features per cepstrum: itself, delta and delta-delta."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UtteranceFeatures:
    """The features of an utterance.

    Attributes:
        network: The input features of the network, frames x D.
        cepstra: The cepstra for the GMMs, frames x 13, before CMVN and deltas.
    """

    network: Frames
    cepstra: Frames


@dataclass(frozen=True, kw_only=True)
class _Job:
    reader: AudioReader | KaldiFeatureReader
    kind: FeatureType


def _same(job: _Job) -> _Job:
    return job


def _extract(job: _Job, utterance: Utterance) -> UtteranceFeatures | tuple[ExclusionReason, str]:
    reader = job.reader
    try:
        if isinstance(reader, KaldiFeatureReader):
            features = reader.read(utterance)
            return UtteranceFeatures(
                network=features, cepstra=to_cepstra(features, bands=reader.bands)
            )
        samples = reader.read(utterance)
    except UtteranceError as bad:
        return bad.reason, bad.detail
    return features_of(samples, reader.rate, job.kind, utterance.volume)


def features_of(
    samples: Samples, rate: int, kind: FeatureType, volume: float = 1.0
) -> UtteranceFeatures:
    """The features of samples at the scale of 16-bit integers."""
    return UtteranceFeatures(
        network=compute_features(kind, samples * volume, rate).astype(np.float32),
        cepstra=mfcc(samples, rate, energy=False).astype(np.float32),
    )


def extract_features(
    utterances: Sequence[Utterance],
    reader: AudioReader | KaldiFeatureReader,
    kind: FeatureType,
    exclusions: Exclusions,
    *,
    processes: int,
    log: Callable[[str], None],
    scratch: Path,
) -> list[tuple[Utterance, UtteranceFeatures]]:
    """Computes the features of utterances; unreadable ones are excluded.

    Args:
        utterances: Whose.
        reader: Reads their audio, or Kaldi feature archives.
        kind: The network's features.
        exclusions: Receives the unreadable ones.
        processes: How many work at a time.
        log: Receives progress lines.
        scratch: A folder whose files the features are kept in, so that memory need not hold them.

    Raises:
        UserError: The disk is full, or a process was killed.
    """
    extracted: list[Utterance] = []
    network, cepstra = FrameStore(scratch / "network.raw"), FrameStore(scratch / "cepstra.raw")
    with WorkerPool(processes, _same, _Job(reader=reader, kind=kind)) as pool:
        results = pool.map(_extract, utterances, chunk=16)
        for number, (utterance, result) in enumerate(zip(utterances, results, strict=True), 1):
            if isinstance(result, tuple):
                exclusions.add(utterance.id, *result)
            elif len(result.network) == 0:
                exclusions.add(
                    utterance.id, ExclusionReason.TOO_SHORT, "no whole window fits into it"
                )
            else:
                extracted.append(utterance)
                network.append(result.network)
                cepstra.append(result.cepstra)
            if number % _LOG_EVERY == 0:
                log(f"features: {number} of {len(utterances)} utterances")
    features = zip(network.arrays(), cepstra.arrays(), strict=True)
    return [
        (utterance, UtteranceFeatures(network=first, cepstra=second))
        for utterance, (first, second) in zip(extracted, features, strict=True)
    ]


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
