"""Features of many utterances, by several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason, Exclusions
from unisono.speech.features.audio import AudioReader, Samples, UtteranceError
from unisono.speech.features.extractors import FeatureType, compute_features, mfcc, to_cepstra
from unisono.speech.features.frame_store import FrameStore
from unisono.speech.features.kaldi_archives import KaldiFeatureReader
from unisono.speech.worker_pool import WorkerPool

Frames = NDArray[np.float32]
_LOG_EVERY = 1000


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
