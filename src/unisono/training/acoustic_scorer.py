"""Log-likelihoods of states: by the network of a run, or by the GMMs of a PREP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import functional

from unisono.errors import UserError
from unisono.models import Takes, build, find
from unisono.runs.directory import RunDirectory
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.decoding.assets import ASSETS_FOLDER, PRIORS_FILE, DecodingAssets
from unisono.speech.features.extraction import (
    UtteranceFeatures,
    cepstral_cmvn_stats,
    gmm_features,
    network_features,
)
from unisono.speech.worker_pool import WorkerPool

Frames = NDArray[np.float32]
_LONGEST = 4096
"""Frames of one forward pass; longer utterances are cut."""
_BROKEN = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
    SafetensorError,
)  # fmt: skip
"""What reading a damaged description, or a model that does not fit it, raises."""


class TrainedNetwork:
    """A run's network, as it was when training ended.

    It sees whole utterances, padded by its context with copies of the first and the last frame, as
    in training. Utterances of more than 4096 frames are cut, each piece with its true
    neighbours: that changes no posterior of a DNN or TDNN, and resets a recurrent network.
    """

    def __init__(self, run: RunDirectory) -> None:
        """Reads the model of a run.

        Raises:
            UserError: There is none yet, or it is broken.
        """
        if not (run.model.is_file() and run.model_description.is_file()):
            raise UserError(f"{run.path} has no model yet: train it to the end")
        try:
            facts = json.loads(run.model_description.read_text(encoding="utf-8"))
            context, name = int(facts.pop("context")), facts.pop("model")
            for other in ("prep", "chunk"):
                facts.pop(other, None)
            self.model = build(name, **facts)
            self.model.load_state_dict(load_file(run.model))
            inputs = int(facts["inputs"])
        except _BROKEN as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the model of {run.path} is broken: {reason}") from None
        self.one_by_one = find(name).takes is Takes.FRAMES
        """Whether it takes each frame with its context, and not the whole utterance."""
        left, right = (getattr(self.model, side, context) for side in ("left", "right"))
        self.left, self.right = int(left), int(right)
        """Frames that it looks at before and behind each one."""
        self.dimension = inputs // (self.left + 1 + self.right) if self.one_by_one else inputs
        """Numbers in a frame."""
        self.model.eval()

    def fingerprint(self) -> str:
        """The sha256 of its parameters."""
        digest = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def log_posteriors(self, frames: Frames) -> Frames:
        """Log posteriors of the states in each frame of an utterance, normalised by speaker."""
        padded = torch.from_numpy(
            np.concatenate(
                [frames[:1].repeat(self.left, 0), frames, frames[-1:].repeat(self.right, 0)]
            )
        )
        around = self.left + self.right
        pieces = []
        with torch.no_grad():
            for first in range(0, len(frames), _LONGEST):
                piece = padded[first : first + _LONGEST + around]
                logits = self._logits(piece, len(piece) - around)
                pieces.append(functional.log_softmax(logits, dim=1).numpy())
        return np.concatenate(pieces)

    def _logits(self, padded: torch.Tensor, frames: int) -> torch.Tensor:
        if not self.one_by_one:
            together: torch.Tensor = self.model(padded[None])[0]
            return together
        dimension = padded.shape[1]
        width = (self.left + 1 + self.right) * dimension
        apart: torch.Tensor = self.model(padded.as_strided((frames, width), (dimension, 1)))
        return apart


class AcousticScorer:
    """Computes log-likelihoods of states with a run's network, or with a PREP's GMMs."""

    def __init__(self, place: Path, processes: int) -> None:
        """Opens a run or a PREP.

        Args:
            place: The run or the PREP.
            processes: How many compute at a time.

        Raises:
            UserError: It is neither, or was not made from speech.
        """
        network: TrainedNetwork | None = None
        if (place / "config.toml").is_file():
            # Read here, too, so that a broken model is reported once, not by every worker.
            network = TrainedNetwork(RunDirectory.open(place))
        self.assets = DecodingAssets.read(place)
        self.cache: Path | None = None
        self.name = "triphone" if self.assets.gmm_hmm.tying.context_dependent else "monophone"
        self._identity = hashlib.sha256(self.assets.gmm_hmm.mixtures.means.tobytes()).hexdigest()
        self._pool: WorkerPool[TrainedNetwork] | None = None
        if network is not None:
            self._priors = _read_priors(place / ASSETS_FOLDER / PRIORS_FILE)
            self._identity += network.fingerprint() + self._priors.tobytes().hex()
            self.cache = place / ASSETS_FOLDER / "graphs"
            self.name = "network"
            self._pool = WorkerPool(processes, _open_network, place)

    def __enter__(self) -> AcousticScorer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    @property
    def worker_cpu_s(self) -> float:
        """CPU seconds of finished work in processes other than this one."""
        return self._pool.worker_cpu_s if self._pool is not None else 0.0

    def fingerprint(self) -> str:
        """The sha256 of everything that the log-likelihoods depend on."""
        return hashlib.sha256(self._identity.encode()).hexdigest()

    def log_likelihoods(
        self, extracted: Sequence[tuple[Utterance, UtteranceFeatures]]
    ) -> Iterator[Frames]:
        """Yields log-likelihoods of utterances, frames x states each."""
        if self._pool is not None:
            return self._infer(self._pool, network_features(extracted))
        stats = cepstral_cmvn_stats(extracted)
        normalized = (gmm_features(h.cepstra, stats[u.speaker]) for u, h in extracted)
        return map(self.assets.gmm_hmm.mixtures.loglikes, normalized)

    def score_tuning_set(self) -> list[Frames]:
        """Log-likelihoods of the held-out utterances of the assets."""
        tuning_set = self.assets.tuning_set
        assert tuning_set is not None
        cuts = tuning_set.starts[1:-1]
        if self._pool is not None:
            return list(self._infer(self._pool, np.split(tuning_set.network, cuts)))
        return [
            self.assets.gmm_hmm.mixtures.loglikes(f) for f in np.split(tuning_set.gaussian, cuts)
        ]

    def _infer(
        self, pool: WorkerPool[TrainedNetwork], frames: Iterable[Frames]
    ) -> Iterator[Frames]:
        for posteriors in pool.map(TrainedNetwork.log_posteriors, frames):
            yield posteriors - self._priors


def _open_network(place: Path) -> TrainedNetwork:
    return TrainedNetwork(RunDirectory.open(place))


def _read_priors(path: Path) -> Frames:
    try:
        priors: Frames = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read the priors of the run ({reason}): train it again") from None
    return priors
