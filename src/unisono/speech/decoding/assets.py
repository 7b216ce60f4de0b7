"""What decoding needs beside a network: a folder `speech` in a PREP, copied into its runs."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.gmm import GaussianMixtures
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.trainer import GmmHmm
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.features.audio import HIGHEST_RATE, LOWEST_RATE
from unisono.speech.features.extraction import UtteranceFeatures
from unisono.speech.features.extractors import FeatureType
from unisono.speech.features.normalization import (
    cepstral_cmvn_stats,
    gmm_features,
    network_cmvn_stats,
    normalize,
)
from unisono.speech.graph.language_model import NgramModel, read_arpa

ASSETS_FOLDER = "speech"
"""The folder's name within a PREP or a run."""
TUNING_SET_FILE = "heldout.npz"
"""The file within it that has the held-out utterances."""
PRIORS_FILE = "priors.npy"
"""The file of a run with the log priors of the states, as its network has them."""
_FORMAT_VERSION = 1
# What damaged JSON and .npz files raise: numpy parses the header of an array as Python.
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError),
    *(EOFError, RecursionError, NotImplementedError, RuntimeError, SyntaxError, TokenError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
# More utterances, or a quarter of an hour and more,
# would hardly change the choice.
_MAX_UTTERANCES = 200
_MAX_FRAMES = 100_000


@dataclass(frozen=True, kw_only=True, eq=False)
class TuningSet:
    """Held-out utterances, to tune decoding with.

    Attributes:
        starts: Utterance u is frames starts[u] to starts[u + 1] - 1.
        network: Features of the network, after CMVN by speaker.
        gaussian: Features of the GMMs.
        words: The transcripts.
    """

    starts: NDArray[np.int64]
    network: NDArray[np.float32]
    gaussian: NDArray[np.float32]
    words: list[tuple[str, ...]]

    def check(self, network: int, gaussian: int | None) -> None:
        """Checks that the parts fit together.

        Args:
            network: The dimension of the network's features.
            gaussian: The dimension of the GMMs' features; None: there are no GMMs.

        Raises:
            ValueError: They do not.
        """
        starts = self.starts
        if starts.shape != (len(self.words) + 1,) or starts.dtype.kind != "i" or starts[0] != 0:
            raise ValueError(f"{TUNING_SET_FILE} does not fit the words of speech.json")
        shapes = [self.network.shape, *([] if gaussian is None else [self.gaussian.shape])]
        wanted = [(starts[-1], network), *([] if gaussian is None else [(starts[-1], gaussian)])]
        if (starts[1:] <= starts[:-1]).any() or shapes != wanted:
            raise ValueError(f"{TUNING_SET_FILE} has arrays that do not fit together")
        if not (np.isfinite(self.network).all() and np.isfinite(self.gaussian).all()):
            raise ValueError(f"{TUNING_SET_FILE} has numbers that are not finite")


def select_tuning_set(heldout: Sequence[tuple[Utterance, UtteranceFeatures]]) -> TuningSet | None:
    """Some held-out utterances, evenly spread over the speakers."""
    if not heldout:
        return None
    frames = sum(len(h.network) for _, h in heldout)
    count = min(_MAX_UTTERANCES, max(1, _MAX_FRAMES * len(heldout) // frames))
    chosen = sorted({round(i) for i in np.linspace(0, len(heldout) - 1, count)})
    some = [heldout[n] for n in chosen]
    network, gaussian = network_cmvn_stats(heldout), cepstral_cmvn_stats(heldout)
    return TuningSet(
        starts=np.cumsum([0] + [len(h.network) for _, h in some]),
        network=np.concatenate([normalize(h.network, network[u.speaker]) for u, h in some]),
        gaussian=np.concatenate([gmm_features(h.cepstra, gaussian[u.speaker]) for u, h in some]),
        words=[u.words for u, _ in some],
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodingAssets:
    """What decoding needs.

    Attributes:
        features: The network's features.
        rate: The sample rate in Hz; 0 with precomputed features.
        dimension: The dimension of the network's features.
        bands: Whether precomputed features are log filterbank energies.
        lexicon: The words.
        phones: All phones, silence first.
        gmm_hmm: The Gaussian model; its states are the network's, too. None: there is no
            alignment, and networks are trained with CTC.
        language_model: The language model of all training text.
        tuning_language_model: The one without the text of the held-out speakers, to tune with.
        tuning_set: Held-out utterances; none where no speaker was held out.
    """

    features: FeatureType
    rate: int
    dimension: int
    bands: bool
    lexicon: Lexicon
    phones: tuple[str, ...]
    gmm_hmm: GmmHmm | None
    language_model: NgramModel
    tuning_language_model: NgramModel
    tuning_set: TuningSet | None

    def write(self, folder: Path) -> None:
        """Writes everything into a folder that exists."""
        facts = {
            "format_version": _FORMAT_VERSION,
            "features": self.features.value,
            "rate": self.rate,
            "dimension": self.dimension,
            "bands": self.bands,
            "silence": None if self.gmm_hmm is None else self.gmm_hmm.silence,
            "phones": list(self.phones),
            "words": None
            if self.tuning_set is None
            else [" ".join(w) for w in self.tuning_set.words],
        }
        (folder / "speech.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        self.lexicon.write(folder / "lexicon.txt")
        self.language_model.write(folder / "lm.arpa")
        self.tuning_language_model.write(folder / "lm_tuning.arpa")
        if self.gmm_hmm is not None:
            _write_gmm_hmm(folder, self.gmm_hmm)
        if self.tuning_set is not None:
            np.savez(
                folder / TUNING_SET_FILE,
                starts=self.tuning_set.starts,
                network=self.tuning_set.network.astype(np.float16),
                gaussian=self.tuning_set.gaussian.astype(np.float16),
            )

    @classmethod
    def read(cls, place: Path) -> DecodingAssets:
        """Reads the assets of a PREP or a run.

        Raises:
            UserError: There is none, or it is broken.
        """
        folder = place / ASSETS_FOLDER
        if not place.is_dir():
            raise UserError(
                f"there is no run and no PREP at {place}: make one of them, first of all by "
                "unisono prepare DATA --lexicon FILE"
            )
        if not (folder / "speech.json").is_file():
            raise UserError(
                f"{place} cannot decode: it has no {ASSETS_FOLDER}/speech.json; "
                "make the PREP from a data directory: unisono prepare DATA --lexicon FILE"
            )
        with _reading(folder):
            facts, gmm_hmm = _read_facts(folder)
            tuning_set = None
            if facts["words"] is not None:
                arrays = _arrays(folder / TUNING_SET_FILE)
                tuning_set = TuningSet(
                    starts=arrays["starts"],
                    network=arrays["network"].astype(np.float32),
                    gaussian=arrays["gaussian"].astype(np.float32),
                    words=[tuple(text.split()) for text in facts["words"]],
                )
            assets = cls(
                features=FeatureType(facts["features"]),
                rate=int(facts["rate"]),
                dimension=int(facts["dimension"]),
                bands=bool(facts.get("bands", facts["dimension"] > 20)),
                lexicon=Lexicon.read(folder / "lexicon.txt"),
                phones=tuple(facts["phones"]),
                gmm_hmm=gmm_hmm,
                language_model=read_arpa(folder / "lm.arpa"),
                tuning_language_model=read_arpa(folder / "lm_tuning.arpa"),
                tuning_set=tuning_set,
            )
            assets._check()
            return assets

    def _check(self) -> None:
        """Checks that the parts fit together: what does not could crash the search.

        Raises:
            ValueError: They do not.
        """
        if self.gmm_hmm is not None:
            _check_gmm_hmm(self.gmm_hmm)
        if len(set(self.phones)) < len(self.phones):
            raise ValueError("speech.json has a phone twice")
        missing = set(self.lexicon.phones) - set(self.phones)
        if missing:
            raise ValueError(f"lexicon.txt has the phone {min(missing)!r}, which has no model")
        if self.rate and not LOWEST_RATE <= self.rate <= HIGHEST_RATE:
            raise ValueError(f"a sample rate of {self.rate} Hz")
        if self.tuning_set is not None:
            model = self.gmm_hmm
            gaussian = None if model is None else model.mixtures.means.shape[1]
            self.tuning_set.check(self.dimension, gaussian)


def read_gmm_hmm(place: Path) -> GmmHmm | None:
    """The Gaussian model alone of a PREP or a run; None: it has none.

    Raises:
        UserError: It is broken.
    """
    folder = place / ASSETS_FOLDER
    if not (folder / "speech.json").is_file():
        return None
    with _reading(folder):
        gmm_hmm = _read_facts(folder)[1]
        if gmm_hmm is not None:
            _check_gmm_hmm(gmm_hmm)
        return gmm_hmm


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turns whatever damaged files raise into one line."""
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{folder} is broken ({reason}): prepare it anew") from None


def _read_facts(folder: Path) -> tuple[dict[str, Any], GmmHmm | None]:
    """What speech.json says, and the Gaussian model."""
    facts = json.loads((folder / "speech.json").read_text(encoding="utf-8"))
    if facts["format_version"] != _FORMAT_VERSION:
        raise UserError(f"{folder} was made by another version of unisono: prepare it anew")
    phones, silence = tuple(facts["phones"]), facts["silence"]
    return facts, None if silence is None else _read_gmm_hmm(folder, phones, float(silence))


def _write_gmm_hmm(folder: Path, model: GmmHmm) -> None:
    tree = json.dumps(model.tying.to_json())
    (folder / "tree.json").write_text(tree + "\n", encoding="utf-8")
    mixtures, topology = model.mixtures, model.topology
    np.savez(
        folder / "gaussians.npz",
        starts=mixtures.starts,
        weights=mixtures.weights,
        means=mixtures.means,
        variances=mixtures.variances,
        first=topology.first,
        moves=topology.moves,
    )


def _read_gmm_hmm(folder: Path, phones: tuple[str, ...], silence: float) -> GmmHmm:
    model = _arrays(folder / "gaussians.npz")
    names = ("starts", "weights", "means", "variances")
    tree = json.loads((folder / "tree.json").read_text(encoding="utf-8"))
    return GmmHmm(
        mixtures=GaussianMixtures(**{name: model[name] for name in names}),
        topology=Topology(phones=phones, first=model["first"], moves=model["moves"]),
        tying=StateTying.from_json(tree),
        silence=silence,
    )


def _check_gmm_hmm(model: GmmHmm) -> None:
    model.topology.check()
    model.tying.check(model.topology)
    model.mixtures.check()
    if len(model.mixtures.starts) != model.tying.states + 1:
        raise ValueError("gaussians.npz and tree.json have different numbers of states")
    if not 0 < model.silence < 1:
        raise ValueError(f"a probability of silence of {model.silence}")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
