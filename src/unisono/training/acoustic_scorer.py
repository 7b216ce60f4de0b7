"""Scores of frames for decoding: by the network of a run, or by the GMMs of a PREP."""

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

from unisono.config import ObjectiveChoice
from unisono.errors import UserError
from unisono.models import Takes, build, find
from unisono.runs.directory import RunDirectory
from unisono.speech.alignment.trainer import GmmHmm
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.decoding.assets import ASSETS_FOLDER, PRIORS_FILE, DecodingAssets
from unisono.speech.features.extraction import UtteranceFeatures
from unisono.speech.features.normalization import (
    cepstral_cmvn_stats,
    gmm_features,
    network_features,
)
from unisono.speech.graph.ctc_graph import CtcGraphInputs
from unisono.speech.graph.decoding_graph import GraphInputs
from unisono.speech.graph.language_model import NgramModel
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
    in training. Utterances of more than 4096 outputs are cut, each piece with its true
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
            self.subsampling = int(facts.pop("subsampling", 1))
            """Frames from one output to the next."""
            self.is_ctc = facts.pop("objective", "states") == ObjectiveChoice.CTC.value
            """Whether its outputs are the blank and phones, and not states."""
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
        self.context = context if self.one_by_one or self.is_ctc else 0
        """Frames each side that it gets as one row with each frame."""
        sides = (0 if self.one_by_one else int(getattr(self.model, s)) for s in ("left", "right"))
        self.left, self.right = sides
        """Rows that it gets before the first one and behind the last one."""
        self.dimension = inputs // (2 * self.context + 1)
        """Numbers in a frame."""
        self.model.eval()

    def fingerprint(self) -> str:
        """The sha256 of its parameters."""
        digest = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def log_posteriors(self, frames: Frames) -> Frames:
        """Log posteriors of what it tells apart, at each output of an utterance.

        Args:
            frames: Of the utterance, normalised by speaker.
        """
        rows = _pad(self._rows(_pad(torch.from_numpy(frames), self.context)), self.left, self.right)
        around = self.left + self.right
        pieces = []
        with torch.no_grad():
            for first in range(0, len(rows) - around, _LONGEST):
                piece = rows[first : first + _LONGEST + around]
                logits = self.model(piece) if self.one_by_one else self.model(piece[None])[0]
                pieces.append(functional.log_softmax(logits, dim=1).numpy())
        return np.concatenate(pieces)

    def _rows(self, padded: torch.Tensor) -> torch.Tensor:
        """Each frame that has an output with its context, a view."""
        dimension, width = padded.shape[1], 2 * self.context + 1
        count = -(-(len(padded) - 2 * self.context) // self.subsampling)
        steps = (self.subsampling * dimension, 1)
        return padded.contiguous().as_strided((count, width * dimension), steps)


def _pad(rows: torch.Tensor, left: int, right: int | None = None) -> torch.Tensor:
    """Puts copies of the first row before, and of the last one behind; by default as many."""
    behind = rows[-1:].expand(left if right is None else right, -1)
    return torch.cat([rows[:1].expand(left, -1), rows, behind])


class AcousticScorer:
    """Computes scores of an utterance's frames with a run's network, or with a PREP's GMMs.

    They are log-likelihoods of states; of a network trained with CTC log posteriors of blank and
    phones.
    """

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
        self.is_ctc = network is not None and network.is_ctc
        self._pool: WorkerPool[TrainedNetwork] | None = None
        if network is None or not network.is_ctc:
            model = self._gmm_hmm(place)
            self.name = "triphone" if model.tying.context_dependent else "monophone"
            self._identity = hashlib.sha256(model.mixtures.means.tobytes()).hexdigest()
        if network is not None:
            self._priors = np.zeros(1, dtype=np.float32)
            if not network.is_ctc:
                self._priors = read_priors(place / ASSETS_FOLDER / PRIORS_FILE)
            self._identity = network.fingerprint() + self._priors.tobytes().hex()
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

    def graph_inputs(self, language_model: NgramModel) -> GraphInputs | CtcGraphInputs:
        """What the decoding graph is made of."""
        assets = self.assets
        if self.is_ctc:
            return CtcGraphInputs(
                lexicon=assets.lexicon, language_model=language_model, phones=assets.phones
            )
        assert assets.gmm_hmm is not None
        return GraphInputs(
            lexicon=assets.lexicon,
            language_model=language_model,
            topology=assets.gmm_hmm.topology,
            tying=assets.gmm_hmm.tying,
            silence=assets.gmm_hmm.silence,
        )

    def _gmm_hmm(self, place: Path) -> GmmHmm:
        """The Gaussian model."""
        if self.assets.gmm_hmm is None:
            raise UserError(
                f"{place} has no Gaussians to decode with: it was prepared without alignment; "
                "train on it with --objective ctc, and decode the run"
            )
        return self.assets.gmm_hmm

    def fingerprint(self) -> str:
        """The sha256 of everything that the log-likelihoods depend on."""
        return hashlib.sha256(self._identity.encode()).hexdigest()

    def log_likelihoods(
        self, extracted: Sequence[tuple[Utterance, UtteranceFeatures]]
    ) -> Iterator[Frames]:
        """Yields log-likelihoods of utterances, frames x states each."""
        if self._pool is not None:
            return self._infer(self._pool, network_features(extracted))
        assert self.assets.gmm_hmm is not None
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
        assert self.assets.gmm_hmm is not None
        mixtures = self.assets.gmm_hmm.mixtures
        return [mixtures.loglikes(f) for f in np.split(tuning_set.gaussian, cuts)]

    def _infer(
        self, pool: WorkerPool[TrainedNetwork], frames: Iterable[Frames]
    ) -> Iterator[Frames]:
        for posteriors in pool.map(TrainedNetwork.log_posteriors, frames):
            yield posteriors - self._priors


def _open_network(place: Path) -> TrainedNetwork:
    return TrainedNetwork(RunDirectory.open(place))


def read_priors(path: Path) -> Frames:
    """Reads the log priors of a run's states."""
    try:
        priors: Frames = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read the priors of the run ({reason}): train it again") from None
    return priors
