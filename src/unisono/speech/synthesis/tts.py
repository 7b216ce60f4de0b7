"""Text to speech by espeak-ng, which runs in a process of its own, and its voices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.speech.corpus.ctm import TimedWord
from unisono.speech.synthesis import espeak_server
from unisono.speech.synthesis.phrases import Words

Samples = NDArray[np.float64]
Program = tuple[str, ...]
"""The command that runs espeak-ng."""

_TIMEOUT_S = 120


_ACCENTS = (
    "en-US",
    "en-US-nyc",
    "en",
    "en-GB-x-rp",
    "en-GB-scotland",
    "en-GB-x-gbclan",
    "en-GB-x-gbcwmd",
    "en-029",
)
# Says the same as no variant at all.
_NO_VARIANT = {"fast"}
_TEST_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One speaker.

    Attributes:
        accent: The English that is spoken.
        variant: espeak-ng's variant of the voice; none is in both training and test data.
        rate: Words a minute, about.
        pitch: Of espeak's 0 to 100.
        range: How far the pitch goes up and down, of espeak's 0 to 100.
        colour: The noise around: its power falls with frequency to this power.
    """

    accent: str
    variant: str
    rate: float
    pitch: float
    range: float
    colour: float

    @property
    def name(self) -> str:
        """What espeak-ng calls it."""
        return f"gmw/{self.accent}+{self.variant}"


def divide_variants(variants: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Divides variants into those that speak for training and those for the test.

    Variants whose names differ in a final number alone sound much alike, and stay together.
    """
    families: dict[str, list[str]] = {}
    for name in sorted(set(variants) - _NO_VARIANT):
        families.setdefault(name.rstrip("0123456789").lower(), []).append(name)
    order = np.random.default_rng(seed).permutation(sorted(families)).tolist()
    tested = order[: max(1, round(_TEST_SHARE * len(order)))]
    trained = order[len(tested) :]
    both = [[name for family in part for name in families[family]] for part in (trained, tested)]
    return both[0], both[1]


def draw_voice(variants: Sequence[str], number: int, random: np.random.Generator) -> Voice:
    """Draws a speaker; numbers that follow each other go through all variants in turn."""
    return Voice(
        accent=_ACCENTS[int(random.integers(len(_ACCENTS)))],
        variant=variants[number % len(variants)],
        rate=float(random.uniform(140, 210)),
        pitch=float(random.uniform(30, 70)),
        range=float(random.uniform(20, 80)),
        colour=float(random.uniform(0, 2)),
    )


@dataclass(frozen=True, kw_only=True)
class SynthesizedPhrase:
    """A synthesised phrase: its samples, and the time of each word."""

    hz: int
    samples: Samples
    words: list[TimedWord]


def find_espeak() -> tuple[Program, list[str]]:
    """Finds the command that runs espeak-ng, and the names of its variants.

    Raises:
        UserError: It is not installed.
    """
    found = find_spec("espeakng_loader")
    if found is None or found.origin is None:
        raise UserError(
            "speech is made with espeak-ng, which is not installed: pip install 'unisono[demo]'"
        )
    folder = Path(found.origin).parent
    variants = folder / "espeak-ng-data" / "voices" / "!v"
    if not variants.is_dir():
        raise UserError(f"espeak-ng has no voices in {variants}: install espeakng-loader again")
    # Alone (-I), so that nothing but the program itself and the loader is in its process.
    program = sys.executable, "-I", str(Path(espeak_server.__file__)), str(folder)
    return program, [file.name for file in variants.iterdir()]


def synthesize_phrases(
    program: Program, voice: Voice, phrases: Sequence[Words], random: np.random.Generator
) -> list[SynthesizedPhrase | None]:
    """Lets a voice say phrases; None where espeak-ng has no time for every word.

    A process is started for it: the library's noise and its echoes go on from one phrase to the
    next, and a phrase must not depend on those before it.

    Raises:
        UserError: The program fails, hangs or talks nonsense.
    """
    requests = [
        {
            "voice": voice.name,
            "rate": round(voice.rate * random.uniform(0.9, 1.1)),
            "pitch": round(voice.pitch + random.uniform(-5, 5)),
            "range": round(voice.range),
            "gap": int(random.choice([0, 0, 0, 5, 15])),
            "text": " ".join(words),
        }
        for words in phrases
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
    try:
        done = subprocess.run(
            program, input=lines, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"espeak-ng failed with {voice.name}: {last or error}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"espeak-ng said nothing for {_TIMEOUT_S} s with {voice.name}") from None
    try:
        return _answers(phrases, done.stdout)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"espeak-ng's answer was not understood: {error}") from None


def _answers(phrases: Sequence[Words], output: bytes) -> list[SynthesizedPhrase | None]:
    """Takes the program's output apart: a line of facts and then samples for each phrase."""
    answers = []
    at = 0
    for words in phrases:
        end = output.index(b"\n", at)
        facts = json.loads(output[at:end])
        at = end + 1 + 2 * facts["samples"]
        audio = np.frombuffer(output[end + 1 : at], dtype=np.int16)
        answers.append(_understand(words, facts, audio.astype(np.float64)))
    return answers


def _understand(words: Words, facts: dict[str, Any], audio: Samples) -> SynthesizedPhrase | None:
    """The words' times; a word ends where the next one or a pause begins."""
    places = np.cumsum([0] + [len(word) + 1 for word in words])
    if [place for place, _ in facts["words"]] != places[:-1].tolist() or not audio.any():
        return None
    starts = [start for _, start in facts["words"]]
    ends = []
    for start, after in zip(starts, [*starts[1:], len(audio)], strict=True):
        ends.append(min([after, *(pause for pause in facts["pauses"] if pause > start)]))
    hz = facts["hz"]
    timed_word = [
        TimedWord(word=word, start=start / hz, end=end / hz)
        for word, start, end in zip(words, starts, ends, strict=True)
    ]
    return SynthesizedPhrase(hz=hz, samples=audio, words=timed_word)
