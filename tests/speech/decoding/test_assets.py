"""The held-out utterances that decoding is tuned with."""

from __future__ import annotations

import numpy as np

from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.decoding.assets import select_tuning_set
from unisono.speech.features.extraction import UtteranceFeatures, network_features


def test_long_utterances_make_a_small_sample() -> None:
    def heldout(count: int, frames: int) -> list[tuple[Utterance, UtteranceFeatures]]:
        random = np.random.default_rng(3)
        return [
            (
                Utterance(
                    id=f"u{n}", speaker=f"s{n % 3}", words=("no",), recording="r", audio="r.wav"
                ),
                UtteranceFeatures(
                    network=random.normal(size=(frames, 2)).astype(np.float32),
                    cepstra=random.normal(size=(frames, 2)).astype(np.float32),
                ),
            )
            for n in range(count)
        ]

    sizes = {}
    for count, frames in ((300, 5), (30, 20_000), (7, 50)):
        extracted = heldout(count, frames)
        tuning_set = select_tuning_set(extracted)
        assert tuning_set is not None
        sizes[count] = len(tuning_set.words)
        whole = list(network_features(extracted))
        np.testing.assert_allclose(tuning_set.network[:frames], whole[0], atol=1e-5)
        np.testing.assert_allclose(tuning_set.network[-frames:], whole[-1], atol=1e-5)
        for speaker in range(3):
            own = np.concatenate(whole[speaker::3])
            np.testing.assert_allclose([own.mean(), own.std()], [0, 1], atol=1e-3)
    assert sizes == {300: 200, 30: 5, 7: 7}
