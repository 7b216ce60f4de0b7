"""Synthesised corpora: phrases spoken by espeak-ng, with noise, as Kaldi data directories."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from unisono.errors import UserError
from unisono.speech.corpus.ctm import TimedWord, ctm_line
from unisono.speech.dependencies import import_package
from unisono.speech.synthesis.phrases import draw_phrase, phrase_lexicon
from unisono.speech.synthesis.tts import (
    Program,
    Samples,
    SynthesizedPhrase,
    Voice,
    divide_variants,
    draw_voice,
    find_espeak,
    synthesize_phrases,
)
from unisono.speech.worker_pool import WorkerPool

Log = Callable[[str], None]

_PARTS = ("train", "test")
_SPEAKER_S = 20.0
_FEWEST_SPEAKERS = 10
_PHRASE_S = 2.0
_MOST_BATCHES = 20
_LOUDEST = 0.99


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions:
    """What is made.

    Attributes:
        hours: Speech to train on, pauses included.
        test_hours: Speech to test on.
        snr: The lowest and the highest ratio of speech to noise, in dB.
        rate: The sample rate in Hz.
        seed: Of everything that is drawn.
        processes: How many work at a time.
    """

    hours: float = 1.0
    test_hours: float = 0.1
    snr: tuple[float, float] = (10.0, 30.0)
    rate: int = 16000
    seed: int = 0
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What one speaker says, where it goes, and the numbers that its random draws start from."""

    part: str
    speaker: str
    voice: Voice
    seconds: float
    seed: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Context:
    options: SynthesisOptions
    folder: Path
    program: Program


@dataclass(frozen=True, kw_only=True)
class _SpeakerResult:
    """What became of a task: for each utterance its id, its words and their times."""

    task: _Task
    utterances: list[tuple[str, list[TimedWord]]]
    seconds: float
    dropped: int


def synthesize(out: Path, options: SynthesisOptions, log: Log) -> None:
    """Makes `out` with the data directories `train` and `test`, and lexicon.txt.

    Args:
        out: The folder to make: whole, or not at all.
        options: The settings. The same ones give the same bytes, with any number of processes.
        log: Receives progress lines.

    Raises:
        UserError: `out` exists or cannot be written, or espeak-ng is missing or fails.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already: choose another place or remove it first")
    if not min(options.hours, options.test_hours) > 0:
        raise UserError("there must be more than 0 hours of speech")
    if not options.snr[0] <= options.snr[1]:
        raise UserError(f"--snr {options.snr[0]:g} {options.snr[1]:g}: give the lower one first")
    program, variants = find_espeak()
    for name in ("soundfile", "soxr"):
        import_package(name)
    partial = out.parent / f".{out.name}.{secrets.token_hex(4)}.partial"
    try:
        partial.mkdir(parents=True)
        phrase_lexicon().write(partial / "lexicon.txt")
        facts = {name: value for name, value in asdict(options).items() if name != "processes"}
        (partial / "synthesis.json").write_text(json.dumps(facts, indent=1) + "\n")
        context = _Context(options=options, folder=partial, program=program)
        with WorkerPool(options.processes, _same, context) as pool:
            for number, part in enumerate(_PARTS):
                tasks = _plan(
                    number, part, divide_variants(variants, options.seed)[number], options
                )
                _write(partial / part, pool.map(_synthesize_speaker, tasks), tasks, log)
        os.rename(partial, out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _plan(
    number: int, part: str, variants: Sequence[str], options: SynthesisOptions
) -> list[_Task]:
    seconds = 3600 * (options.hours if part == "train" else options.test_hours)
    speakers = max(round(seconds / _SPEAKER_S), _FEWEST_SPEAKERS)
    digits = len(str(speakers - 1))
    tasks = []
    for s in range(speakers):
        seed = options.seed, number, s
        tasks.append(
            _Task(
                part=part,
                speaker=f"{part}{s:0{digits}d}",
                voice=draw_voice(variants, s, np.random.default_rng([*seed, 0])),
                seconds=seconds / speakers,
                seed=(*seed, 1),
            )
        )
    return tasks


def _same(context: _Context) -> _Context:
    return context


def _synthesize_speaker(context: _Context, task: _Task) -> _SpeakerResult:
    """Lets one speaker speak, and writes the audio."""
    random = np.random.default_rng(task.seed)
    folder = Path("audio") / task.speaker
    (context.folder / task.part / folder).mkdir(parents=True)
    utterances: list[tuple[str, list[TimedWord]]] = []
    seconds, dropped = 0.0, 0
    for _ in range(_MOST_BATCHES):
        count = max(1, round((task.seconds - seconds) / _PHRASE_S))
        phrases = [draw_phrase(random) for _ in range(count)]
        for phrase in synthesize_phrases(context.program, task.voice, phrases, random):
            if phrase is None:
                dropped += 1
                continue
            samples, shift = _add_noise(phrase, task.voice, context.options, random)
            name = f"{task.speaker}-{len(utterances):03d}"
            file = context.folder / task.part / folder / f"{name}.flac"
            import_package("soundfile").write(file, samples, context.options.rate, subtype="PCM_16")
            utterances.append((name, [t.shifted(shift) for t in phrase.words]))
            seconds += len(samples) / context.options.rate
            if seconds >= task.seconds:
                return _SpeakerResult(
                    task=task, utterances=utterances, seconds=seconds, dropped=dropped
                )
    raise UserError(f"espeak-ng's voice {task.voice.name} says too little: install it again")


def _add_noise(
    phrase: SynthesizedPhrase, voice: Voice, options: SynthesisOptions, random: np.random.Generator
) -> tuple[Samples, float]:
    """The samples, -1 to 1, between pauses and in noise; and how far the words moved, in s."""
    speech = import_package("soxr").resample(phrase.samples, phrase.hz, options.rate, quality="HQ")
    before, after = (round(options.rate * random.uniform(0.15, 0.4)) for _ in range(2))
    clean = np.concatenate([np.zeros(before), speech, np.zeros(after)])
    power = np.mean(speech**2)
    noise = _noise(len(clean), voice.colour, random)
    snr = random.uniform(*options.snr)
    mixed = clean + noise * np.sqrt(power / 10 ** (snr / 10))
    level = 10 ** (random.uniform(-35, -20) / 20) / np.sqrt(np.mean(mixed**2))
    return mixed * min(level, _LOUDEST / np.abs(mixed).max()), before / options.rate


def _noise(count: int, colour: float, random: np.random.Generator) -> Samples:
    """Noise of power 1 that falls with frequency to the power `colour`; flat below 1/200."""
    spectrum = np.fft.rfft(random.standard_normal(count))
    frequency = np.maximum(np.fft.rfftfreq(count), 1 / 200)
    noise = np.fft.irfft(spectrum * frequency ** (-colour / 2), count)
    return np.asarray(noise / np.sqrt(np.mean(noise**2)))


def _write(
    folder: Path, spoken: Iterable[_SpeakerResult], tasks: Sequence[_Task], log: Log
) -> None:
    """Writes the tables of a part while its speakers speak, one after the other."""
    folder.mkdir()
    total = sum(task.seconds for task in tasks)
    seconds, logged, utterances, dropped = 0.0, 0.0, 0, 0
    names = ("wav.scp", "text", "utt2spk", "spk2voice", "words.ctm")
    files = {name: (folder / name).open("w", encoding="utf-8") for name in names}
    try:
        for each in spoken:
            who = each.task.speaker
            files["spk2voice"].write(f"{who} {each.task.voice.name}\n")
            for name, words in each.utterances:
                files["wav.scp"].write(f"{name} audio/{who}/{name}.flac\n")
                files["text"].write(" ".join([name, *(t.word for t in words)]) + "\n")
                files["utt2spk"].write(f"{name} {who}\n")
                files["words.ctm"].writelines(ctm_line(name, 1, t) for t in words)
            seconds, utterances = seconds + each.seconds, utterances + len(each.utterances)
            dropped += each.dropped
            if seconds - logged > total / 5 and seconds < total:
                logged = seconds
                log(f"{folder.name}: {seconds / 3600:.2f} of {total / 3600:.2f} h")
    finally:
        for file in files.values():
            file.close()
    log(
        f"{folder.name}: {seconds / 3600:.2f} h, {utterances} utterances by {len(tasks)} speakers"
        + (f"; {dropped} left out, since a word has no time" if dropped else "")
    )
