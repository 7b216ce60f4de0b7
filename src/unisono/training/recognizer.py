"""Speech to words in another program, with the model of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.decoding.decoder import Decoder, Words
from unisono.speech.dependencies import import_package
from unisono.speech.features.audio import AudioReader, UtteranceError
from unisono.speech.features.extraction import UtteranceFeatures, features_of
from unisono.speech.features.extractors import FeatureType
from unisono.speech.graph.decoding_graph import cached_graph
from unisono.training.acoustic_scorer import AcousticScorer
from unisono.training.decode import DecodeOptions, tuned_settings

_SCALE = 32768.0


class Recognizer:
    """Recognises speech with the model of a run, and its lexicon and language model.

        recognizer = unisono.Recognizer("run")
        print(*recognizer.recognize("question.wav"))

    The first one of a run builds the decoding graph and tunes acoustic scale and word insertion
    penalty on the held-out speakers, as `unisono decode` does; both are kept in the run. It is for
    one thread; `close` it, or use it in a with statement.
    """

    def __init__(self, run: Path | str) -> None:
        """Opens a run, or a PREP to recognise with its Gaussians.

        Raises:
            UserError: It is neither, has no model yet, or was not made from audio.
        """
        for name in ("soundfile", "kaldifst", "kaldi_decoder"):
            import_package(name)
        self._scorer = AcousticScorer(Path(run), 1)
        assets = self._scorer.assets
        if assets.features is FeatureType.KALDI:
            raise UserError(
                f"{run} was trained on features of Kaldi, which cannot be computed from audio here"
            )
        self.rate = assets.rate
        """Samples a second of the audio that the model was trained on."""
        settings, _ = tuned_settings(
            self._scorer, assets.tuning_language_model, DecodeOptions(), lambda line: None
        )
        self._scale, self._penalty = settings.scale, settings.penalty
        inputs = self._scorer.graph_inputs(assets.language_model)
        cache = self._scorer.cache
        graph = cached_graph(inputs, cache) if cache else inputs.build()
        self._decoder = Decoder(graph, inputs.words, 1)
        self._closed = False

    def __enter__(self) -> Recognizer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes its temporary files; nothing can be recognised after it."""
        self._closed = True
        self._decoder.__exit__()
        self._scorer.__exit__()

    def recognize(self, audio: Path | str | ArrayLike) -> Words:
        """The words in a file, or in samples from -1 to 1 at the model's rate.

        Raises:
            UserError: It cannot be read, or is too short for one frame.
        """
        return self.recognize_speaker([audio])[0]

    def recognize_speaker(self, audios: Sequence[Path | str | ArrayLike]) -> list[Words]:
        """The words in several utterances of one speaker.

        Features are normalised over all of them, as in training: the more there are, the better.

        Raises:
            UserError: One cannot be read, or is too short for one frame; or it is closed.
        """
        if self._closed:
            raise UserError("the recognizer is closed: make another one")
        extracted = [
            (_utterance(str(number)), self._features(audio)) for number, audio in enumerate(audios)
        ]
        loglikes = self._scorer.log_likelihoods(extracted)
        return [h.words for h in self._decoder.decode(loglikes, self._scale, self._penalty)]

    def _features(self, audio: Path | str | ArrayLike) -> UtteranceFeatures:
        name = str(audio) if isinstance(audio, Path | str) else "the samples"
        try:
            samples = self._samples(audio)
        except UtteranceError as error:
            raise UserError(f"{name}: {error.detail}") from None
        features = features_of(samples, self.rate, self._scorer.assets.features)
        if not len(features.network):
            raise UserError(f"{name}: too short, no whole window of 25 ms fits into it")
        return features

    def _samples(self, audio: Path | str | ArrayLike) -> NDArray[np.float64]:
        if isinstance(audio, Path | str):
            return AudioReader(rate=self.rate, resample=True).read(_utterance(str(audio)))
        try:
            samples = np.asarray(audio, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            samples = np.full(1, np.nan)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            raise UserError("samples must be finite numbers, one after the other in one dimension")
        return samples * _SCALE


def _utterance(audio: str) -> Utterance:
    return Utterance(id=audio, speaker="", words=(), recording=audio, audio=audio)
