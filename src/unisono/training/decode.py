"""``unisono decode``: a model and speech to words and their score."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.errors import UserError
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.speech.corpus.data_directory import Utterance, nothing_usable
from unisono.speech.decoding.assets import FOLDER, Kit
from unisono.speech.decoding.decoder import Decoder, Words
from unisono.speech.decoding.scoring import Score, score
from unisono.speech.decoding.tuning import Tuned, tune
from unisono.speech.dependencies import package
from unisono.speech.features.extraction import (
    Heard,
    gaussian_frames,
    hear,
    network_frames,
    speaker_moments,
)
from unisono.speech.features.extractors import Features
from unisono.speech.features.kaldi_features import Stored
from unisono.speech.graph.decoding_graph import Ingredients, build_graph, cached_graph
from unisono.speech.graph.language_model import Ngrams, read_language
from unisono.speech.prepare import scratch_beside
from unisono.speech.validation import Intake, check_data
from unisono.speech.worker_pool import Crew
from unisono.training.keep import PRIORS
from unisono.training.network import Network

Frames = NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to decode.

    Attributes:
        intake: Which audio is accepted; the rate is the model's.
        language: An ARPA file instead of the language model that was prepared.
        order: Use n-grams up to this length only; 0: all.
        like: A folder that was made by decoding: its scale and price are used, none is tuned.
        processes: How many work at a time.
    """

    intake: Intake = field(default_factory=Intake)
    language: Path | None = None
    order: int = 0
    like: Path | None = None
    processes: int = 1


class Ear:
    """What turns features into log-likelihoods: a run's network, or a PREP's Gaussians."""

    def __init__(self, place: Path, processes: int) -> None:
        """Opens a run or a PREP.

        Args:
            place: The run or the PREP.
            processes: How many of them listen at a time.

        Raises:
            UserError: It is neither, or was not made from speech.
        """
        network: Network | None = None
        if (place / "config.toml").is_file():
            network = Network(RunDirectory.open(place))  # read here, too: a bad one is told of once
        self.kit = Kit.read(place)
        self.cache: Path | None = None
        self.name = "triphone" if self.kit.acoustic.tying.contextual else "monophone"
        self._identity = hashlib.sha256(self.kit.acoustic.mixtures.means.tobytes()).hexdigest()
        self._crew: Crew[Network] | None = None
        if network is not None:
            self._priors = _read_priors(place / FOLDER / PRIORS)
            self._identity += network.fingerprint() + self._priors.tobytes().hex()
            self.cache = place / FOLDER / "graphs"
            self.name = "network"
            self._crew = Crew(processes, _open_network, place)

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: object) -> None:
        if self._crew is not None:
            self._crew.close()

    def fingerprint(self) -> str:
        """Tells this ear from any other."""
        return hashlib.sha256(self._identity.encode()).hexdigest()

    def hear(self, heard: Sequence[tuple[Utterance, Heard]]) -> Iterator[Frames]:
        """Yields log-likelihoods of utterances, frames x states each."""
        if self._crew is not None:
            return self._listen(self._crew, network_frames(heard))
        moments = speaker_moments(heard)
        normalised = (gaussian_frames(h.cepstra, moments[u.speaker]) for u, h in heard)
        return map(self.kit.acoustic.mixtures.loglikes, normalised)

    def hear_sample(self) -> list[Frames]:
        """Log-likelihoods of the held-out utterances that the kit has."""
        sample = self.kit.sample
        assert sample is not None
        cuts = sample.starts[1:-1]
        if self._crew is not None:
            return list(self._listen(self._crew, np.split(sample.network, cuts)))
        return [self.kit.acoustic.mixtures.loglikes(f) for f in np.split(sample.gaussian, cuts)]

    def _listen(self, crew: Crew[Network], frames: Iterable[Frames]) -> Iterator[Frames]:
        for posteriors in crew.map(Network.log_posteriors, frames):
            yield posteriors - self._priors


def _open_network(place: Path) -> Network:
    return Network(RunDirectory.open(place))


def decode(place: Path, data: Path, out: Path, how: Decoding, say: Say) -> Score | None:
    """Decodes; writes hyp.txt, score.json, and with transcripts errors.txt.

    Args:
        place: A run, or a PREP to decode with its Gaussians.
        data: A Kaldi data directory; scored where it has a text.
        out: The folder to make.
        how: The settings.
        say: Takes lines that tell what happens.

    Returns:
        The score, where there are transcripts.

    Raises:
        UserError: Something cannot be read, or `out` exists.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; name another --out")
    for name in ("soundfile", "kaldifst", "kaldi_decoder", "kaldialign"):
        package(name)  # said before an hour of work, not after it
    with Ear(place, how.processes) as ear, scratch_beside(out) as scratch:
        return _decode(ear, data, out, how, scratch, say)


def _decode(
    ear: Ear, data: Path, out: Path, how: Decoding, scratch: Path, say: Say
) -> Score | None:
    kit = ear.kit
    language, tuning_language = _languages(kit, how, say)
    checked = check_data(
        data,
        replace(how.intake, rate=kit.rate),
        None,
        stored=kit.features is Features.KALDI,
        like=Stored(dimension=kit.dimension, bands=kit.bands),
    )
    say(f"{len(checked.utterances)} utterances to decode with the {ear.name}")
    heard = hear(
        checked.utterances,
        checked.reader,
        kit.features,
        checked.aside,
        processes=how.processes,
        say=say,
        scratch=scratch,
    )
    for line in checked.aside.summary():
        say(line)
    if not heard:
        raise nothing_usable(data, checked.aside)
    tuned = _tune(ear, tuning_language, how, say)
    ingredients = _ingredients(kit, language)
    machine = cached_graph(ingredients, ear.cache) if ear.cache else build_graph(ingredients)
    say(f"graph: {len(machine.final)} states, {len(machine.source)} arcs")
    with Decoder(machine, ingredients.words, how.processes) as decoder:
        found = decoder.decode(ear.hear(heard), tuned.scale, tuned.penalty)
    by_name = {u.id: words for (u, _), words in zip(heard, found, strict=True)}
    facts: dict[str, JsonValue] = {
        "acoustic_scale": tuned.scale,
        "insertion_penalty": tuned.penalty,
        "tuning": {"errors": tuned.errors, "words": tuned.words, "tried": tuned.tried},
        "lm_order": language.order,
        "model": ear.name,
        "utterances": len(heard),
        "set_aside": len(checked.aside),
    }
    said = {u.id: u.words for u, _ in heard if u.transcribed}
    result = None
    if said:
        result = score(said, by_name, {u.id: u.speaker for u, _ in heard})
        facts = {**result.facts(), **facts}
    _write(out, by_name, facts, result)
    checked.aside.write(out / "set_aside.txt")
    return result


def _languages(kit: Kit, how: Decoding, say: Say) -> tuple[Ngrams, Ngrams]:
    """The language model to decode with, and the one to tune with."""
    both = kit.language, kit.tuning_language
    if how.language is not None:
        given = read_language(how.language, kit.lexicon.words, say)
        both = given, given
    if how.order:
        both = both[0].cut(how.order), both[1].cut(how.order)
    return both


def _ingredients(kit: Kit, language: Ngrams) -> Ingredients:
    return Ingredients(
        lexicon=kit.lexicon,
        language=language,
        topology=kit.acoustic.topology,
        tying=kit.acoustic.tying,
        silence=kit.acoustic.silence,
    )


def _tune(ear: Ear, language: Ngrams, how: Decoding, say: Say) -> Tuned:
    """Tunes on the held-out speakers; a run remembers what came of it."""
    if how.like is not None:
        tuned = _tuned_in(how.like)
        say(f"scale {tuned.scale:.3f}, price {tuned.penalty:+.1f}, as in {how.like}")
        return tuned
    sample = ear.kit.sample
    if sample is None:
        tuned = Tuned()
        default = f"scale {tuned.scale:g} and price {tuned.penalty:g} of a word are not tuned"
        say(f"no speaker was held out: {default} (--like takes those of another decoding)")
        return tuned
    ingredients = _ingredients(ear.kit, language)
    memory: Path | None = None
    if ear.cache is not None:
        key = f"{ingredients.fingerprint()}{ear.fingerprint()}"
        memory = ear.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        if memory.is_file():
            return Tuned(**json.loads(memory.read_text(encoding="utf-8")))
    say(f"tuning on {len(sample.words)} utterances of held-out speakers")
    with Decoder(build_graph(ingredients), ingredients.words, how.processes) as decoder:
        tuned = tune(decoder, ear.hear_sample(), sample.words, say)
    if memory is not None:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, json.dumps(asdict(tuned)).encode())
    return tuned


def _tuned_in(result: Path) -> Tuned:
    """The settings that another decoding used."""
    file = result / "score.json"
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return Tuned(
            scale=float(facts["acoustic_scale"]), penalty=float(facts["insertion_penalty"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} has no scale and price to take ({reason})") from None


def _write(
    out: Path, found: dict[str, Words], facts: dict[str, JsonValue], result: Score | None
) -> None:
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot make {out}: {error.strerror}") from None
    lines = [" ".join([name, *words]) + "\n" for name, words in sorted(found.items())]
    write_atomically(out / "hyp.txt", "".join(lines).encode())
    write_atomically(out / "score.json", (json.dumps(facts, indent=1) + "\n").encode())
    if result is not None:
        write_atomically(out / "errors.txt", "\n".join(result.aligned).encode())
        write_atomically(out / "speakers.txt", "\n".join([*result.lines(), ""]).encode())


def _read_priors(path: Path) -> Frames:
    try:
        priors: Frames = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read the priors of the run ({reason}): train it again") from None
    return priors
