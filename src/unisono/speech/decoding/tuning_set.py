"""The held-out utterances that decoding is tuned with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.decoding.assets import Sample
from unisono.speech.features.extraction import (
    Heard,
    gaussian_frames,
    network_moments,
    normalised,
    speaker_moments,
)

# Tuning decodes the sample some twenty times; more utterances, or a quarter of an hour and more,
# would hardly change the choice.
_SAMPLE = 200
_SAMPLE_FRAMES = 100_000


def sample_of(heldout: Sequence[tuple[Utterance, Heard]]) -> Sample | None:
    """Some held-out utterances, evenly spread over the speakers."""
    if not heldout:
        return None
    frames = sum(len(h.network) for _, h in heldout)
    count = min(_SAMPLE, max(1, _SAMPLE_FRAMES * len(heldout) // frames))
    chosen = sorted({round(i) for i in np.linspace(0, len(heldout) - 1, count)})
    some = [heldout[n] for n in chosen]
    network, gaussian = network_moments(heldout), speaker_moments(heldout)
    return Sample(
        starts=np.cumsum([0] + [len(h.network) for _, h in some]),
        network=np.concatenate([normalised(h.network, network[u.speaker]) for u, h in some]),
        gaussian=np.concatenate([gaussian_frames(h.cepstra, gaussian[u.speaker]) for u, h in some]),
        words=[u.words for u, _ in some],
    )
