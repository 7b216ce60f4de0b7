"""What decoding needs beside a network: a folder `speech` in a PREP, copied into its runs."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.speech.alignment.gmm import Mixtures
from unisono.speech.alignment.state_tying import Tying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.worker import Acoustic
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.features.extractors import Features
from unisono.speech.graph.language_model import Ngrams, read_arpa

FOLDER = "speech"
"""The folder's name within a PREP or a run."""
SAMPLE = "heldout.npz"
"""The file within it that has the held-out utterances."""
_FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Held-out utterances, to tune decoding with.

    Attributes:
        starts: Utterance u is frames starts[u] to starts[u + 1] - 1.
        network: What the network hears, normalised by speaker.
        gaussian: What the Gaussians hear.
        words: What was said.
    """

    starts: NDArray[np.int64]
    network: NDArray[np.float32]
    gaussian: NDArray[np.float32]
    words: list[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kit:
    """What decoding needs.

    Attributes:
        features: What the network hears.
        rate: The sample rate in Hz; 0 where features were made elsewhere.
        dimension: Numbers in a frame that the network hears.
        bands: Whether features made elsewhere are log energies of bands.
        lexicon: The words.
        acoustic: The Gaussian model; its phones and states are the network's, too.
        language: The language model of all training text.
        tuning_language: The one without the text of the held-out speakers, to tune with.
        sample: Held-out utterances; none where no speaker was held out.
    """

    features: Features
    rate: int
    dimension: int
    bands: bool
    lexicon: Lexicon
    acoustic: Acoustic
    language: Ngrams
    tuning_language: Ngrams
    sample: Sample | None

    def write(self, folder: Path) -> None:
        """Writes everything into a folder that exists."""
        facts = {
            "format_version": _FORMAT_VERSION,
            "features": self.features.value,
            "rate": self.rate,
            "dimension": self.dimension,
            "bands": self.bands,
            "silence": self.acoustic.silence,
            "phones": list(self.acoustic.topology.phones),
            "words": None if self.sample is None else [" ".join(w) for w in self.sample.words],
        }
        (folder / "speech.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        tree = json.dumps(self.acoustic.tying.to_json())
        (folder / "tree.json").write_text(tree + "\n", encoding="utf-8")
        self.lexicon.write(folder / "lexicon.txt")
        self.language.write(folder / "lm.arpa")
        self.tuning_language.write(folder / "lm_tuning.arpa")
        mixtures, topology = self.acoustic.mixtures, self.acoustic.topology
        np.savez(
            folder / "gaussians.npz",
            starts=mixtures.starts,
            weights=mixtures.weights,
            means=mixtures.means,
            variances=mixtures.variances,
            first=topology.first,
            moves=topology.moves,
        )
        if self.sample is not None:
            np.savez(
                folder / SAMPLE,
                starts=self.sample.starts,
                network=self.sample.network.astype(np.float16),
                gaussian=self.sample.gaussian.astype(np.float16),
            )

    @classmethod
    def read(cls, place: Path) -> Kit:
        """Reads the kit of a PREP or a run.

        Raises:
            UserError: There is none, or it is broken.
        """
        folder = place / FOLDER
        if not place.is_dir():
            raise UserError(
                f"there is no run and no PREP at {place}: make one of them, first of all by "
                "unisono prepare DATA --lexicon FILE"
            )
        if not (folder / "speech.json").is_file():
            raise UserError(
                f"{place} cannot decode: it has no {FOLDER}/speech.json; "
                "make the PREP from a data directory: unisono prepare DATA --lexicon FILE"
            )
        try:
            facts = json.loads((folder / "speech.json").read_text(encoding="utf-8"))
            if facts["format_version"] != _FORMAT_VERSION:
                raise UserError(f"{folder} was made by another version of unisono: prepare it anew")
            model = _arrays(folder / "gaussians.npz")
            topology = Topology(
                phones=tuple(facts["phones"]), first=model["first"], moves=model["moves"]
            )
            names = ("starts", "weights", "means", "variances")
            mixtures = Mixtures(**{name: model[name] for name in names})
            tree = json.loads((folder / "tree.json").read_text(encoding="utf-8"))
            acoustic = Acoustic(
                mixtures=mixtures,
                topology=topology,
                tying=Tying.from_json(tree),
                silence=float(facts["silence"]),
            )
            sample = None
            if facts["words"] is not None:
                arrays = _arrays(folder / SAMPLE)
                sample = Sample(
                    starts=arrays["starts"],
                    network=arrays["network"].astype(np.float32),
                    gaussian=arrays["gaussian"].astype(np.float32),
                    words=[tuple(text.split()) for text in facts["words"]],
                )
            return cls(
                features=Features(facts["features"]),
                rate=int(facts["rate"]),
                dimension=int(facts["dimension"]),
                bands=bool(facts.get("bands", facts["dimension"] > 20)),
                lexicon=Lexicon.read(folder / "lexicon.txt"),
                acoustic=acoustic,
                language=read_arpa(folder / "lm.arpa"),
                tuning_language=read_arpa(folder / "lm_tuning.arpa"),
                sample=sample,
            )
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{folder} is broken ({reason}): prepare it anew") from None


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
