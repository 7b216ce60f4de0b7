"""Features of many utterances, by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.data import Corpus, Part
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import Reason, SetAside
from unisono.speech.features.audio import BadAudioError, Reader
from unisono.speech.features.extractors import Features, cepstra_of, compute, mfcc
from unisono.speech.features.frame_store import Shelf
from unisono.speech.features.kaldi_features import Stored
from unisono.speech.features.transforms import add_deltas
from unisono.speech.worker_pool import Crew

Frames = NDArray[np.float32]
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]
_TOLD_EVERY = 1000
_SMALLEST_STD = 1e-5
GAUSSIAN_WIDTH = 3
"""How many times as many numbers as cepstra the Gaussians hear: two differences are added."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Heard:
    """The features of an utterance.

    Attributes:
        network: What the network hears, frames x D.
        cepstra: What the Gaussians hear, frames x 13, before normalisation and differences.
    """

    network: Frames
    cepstra: Frames


@dataclass(frozen=True, kw_only=True)
class _Job:
    reader: Reader | Stored
    kind: Features


def _same(job: _Job) -> _Job:
    return job


def _hear(job: _Job, utterance: Utterance) -> Heard | tuple[Reason, str]:
    reader = job.reader
    try:
        if isinstance(reader, Stored):
            features = reader.read(utterance)
            return Heard(network=features, cepstra=cepstra_of(features, bands=reader.bands))
        samples = reader.read(utterance)
    except BadAudioError as bad:
        return bad.reason, bad.detail
    louder = samples * utterance.volume
    return Heard(
        network=compute(job.kind, louder, reader.rate).astype(np.float32),
        cepstra=mfcc(samples, reader.rate, energy=False).astype(np.float32),
    )


def hear(
    utterances: Sequence[Utterance],
    reader: Reader | Stored,
    kind: Features,
    aside: SetAside,
    *,
    processes: int,
    say: Callable[[str], None],
    scratch: Path,
) -> list[tuple[Utterance, Heard]]:
    """Computes the features of utterances; those whose audio turns out broken are set aside.

    Args:
        utterances: Whose.
        reader: Reads their audio, or features made elsewhere.
        kind: What the network hears.
        aside: Takes the broken ones.
        processes: How many work at a time.
        say: Takes lines that tell how far it is.
        scratch: A folder whose files the features are kept in, so that memory need not hold them.

    Raises:
        UserError: The disk is full, or a process was killed.
    """
    heard: list[Utterance] = []
    network, cepstra = Shelf(scratch / "network.raw"), Shelf(scratch / "cepstra.raw")
    with Crew(processes, _same, _Job(reader=reader, kind=kind)) as crew:
        results = crew.map(_hear, utterances, chunk=16)
        for number, (utterance, result) in enumerate(zip(utterances, results, strict=True), 1):
            if isinstance(result, tuple):
                aside.add(utterance.id, *result)
            elif len(result.network) == 0:
                aside.add(utterance.id, Reason.TOO_SHORT, "no whole window fits into it")
            else:
                heard.append(utterance)
                network.put(result.network)
                cepstra.put(result.cepstra)
            if number % _TOLD_EVERY == 0:
                say(f"features: {number} of {len(utterances)} utterances")
    features = zip(network.all(), cepstra.all(), strict=True)
    return [
        (utterance, Heard(network=first, cepstra=second))
        for utterance, (first, second) in zip(heard, features, strict=True)
    ]


def speaker_moments(heard: Sequence[tuple[Utterance, Heard]]) -> dict[str, Moments]:
    """Mean and standard deviation of each speaker's cepstra."""
    sums: dict[str, list[NDArray[np.float64]]] = {}
    for utterance, features in heard:
        x = features.cepstra.astype(np.float64)
        own = [np.full(x.shape[1], float(len(x))), x.sum(0), (x**2).sum(0)]
        known = sums.setdefault(utterance.speaker, [np.zeros(x.shape[1]) for _ in own])
        sums[utterance.speaker] = [a + b for a, b in zip(known, own, strict=True)]
    moments = {}
    for name, (count, total, square) in sums.items():
        mean = total / count
        moments[name] = mean, np.sqrt(np.maximum(square / count - mean**2, _SMALLEST_STD**2))
    return moments


def gaussian_frames(cepstra: Frames, moments: Moments) -> Frames:
    """What the Gaussians hear: cepstra normalised by speaker, with two differences."""
    mean, std = moments
    return add_deltas((cepstra - mean) / std).astype(np.float32)


def network_frames(heard: Sequence[tuple[Utterance, Heard]]) -> Iterator[Frames]:
    """Yields what the network hears, each speaker's frames to mean 0 and standard deviation 1."""
    moments = network_moments(heard)
    return (normalised(h.network, moments[u.speaker]) for u, h in heard)


def network_moments(
    heard: Sequence[tuple[Utterance, Heard]],
) -> dict[str, tuple[Frames, Frames]]:
    """Mean and standard deviation of each speaker's features, as a PREP has them.

    One speaker's are in memory at a time.
    """
    own: dict[str, list[tuple[Utterance, Heard]]] = {}
    for utterance, features in heard:
        own.setdefault(utterance.speaker, []).append((utterance, features))
    moments = {}
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
        moments[name] = mean[0], std[0]
    return moments


def normalised(frames: Frames, moments: tuple[Frames, Frames]) -> Frames:
    """Frames less a mean, by a standard deviation."""
    mean, std = moments
    return (frames - mean) / std
