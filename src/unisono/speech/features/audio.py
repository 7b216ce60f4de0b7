"""Audio files as samples at the scale of 16-bit integers."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason
from unisono.speech.dependencies import import_package
from unisono.speech.features.spectrum import frame_count

Samples = NDArray[np.float64]

LOWEST_RATE = 8000
HIGHEST_RATE = 384_000
"""Beyond it a header is broken, and windows of 25 ms would fill the memory."""
_SCALE = 32768.0
_BLOCK = 1 << 20
_COMMAND_TIMEOUT_S = 300
# A segment may end this much after its recording, as for Kaldi: times in segments are rounded, or
# measured on other copies of the audio.
_SLACK_S = 0.5


class UtteranceError(Exception):
    """Audio of one utterance that cannot be used: the reason, and what exactly is wrong."""

    def __init__(self, reason: ExclusionReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class AudioReader:
    """How audio is read.

    Attributes:
        rate: The sample rate in Hz that comes out.
        resample: Whether audio of another rate is converted, or refused.
    """

    rate: int
    resample: bool = False

    def length(self, utterance: Utterance) -> int:
        """The utterance's samples, from the header of its file alone (0 for a command).

        Raises:
            UtteranceError: It cannot be used.
        """
        if utterance.is_command:
            return 0
        frames, rate, channels = probe(utterance.audio)
        self._check(rate, channels, utterance.channel)
        first, last = _bounds(utterance, frames, rate)
        return int((last - first) * self.rate / (rate * utterance.speed))

    def frames(self, utterance: Utterance) -> int:
        """The frames that the utterance's samples make (0 for a command).

        Raises:
            UtteranceError: It cannot be used.
        """
        return frame_count(self.length(utterance), self.rate)

    def read(self, utterance: Utterance) -> Samples:
        """The utterance's samples, at the scale of 16-bit integers.

        Raises:
            UtteranceError: They cannot be read.
        """
        with _opened(utterance) as file:
            rate = int(file.samplerate)
            self._check(rate, int(file.channels), utterance.channel)
            first, last = _bounds(utterance, int(file.frames), rate)
            file.seek(first)
            samples = _read(file, last - first, utterance.channel)
        if not len(samples):
            raise UtteranceError(ExclusionReason.UNREADABLE, "it holds no samples")
        if not np.isfinite(samples).all():
            raise UtteranceError(ExclusionReason.UNREADABLE, "it holds samples that are not finite")
        played = rate * utterance.speed
        if played != self.rate:
            samples = import_package("soxr").resample(samples, played, self.rate, quality="HQ")
        return samples

    def _check(self, rate: int, channels: int, channel: int) -> None:
        if rate != self.rate and not self.resample:
            raise UtteranceError(ExclusionReason.RATE, f"{rate} Hz, not {self.rate} Hz")
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise UtteranceError(
                ExclusionReason.RATE, f"{rate} Hz, outside of {LOWEST_RATE} to {HIGHEST_RATE} Hz"
            )
        if channel >= channels:
            raise UtteranceError(
                ExclusionReason.CHANNEL, f"{channels} channels, none numbered {channel}"
            )


def sample_rate(utterance: Utterance) -> int:
    """The sample rate in Hz of an utterance's audio; a command is run.

    Raises:
        UtteranceError: It cannot be read.
    """
    with _opened(utterance) as file:
        return int(file.samplerate)


@contextmanager
def _opened(utterance: Utterance) -> Iterator[Any]:
    soundfile = import_package("soundfile")
    source: Any = utterance.audio
    if utterance.is_command:
        source = io.BytesIO(run_command(utterance.audio[:-1]))
    try:
        with soundfile.SoundFile(source) as file:
            yield file
    except (soundfile.SoundFileError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(error) from None


@lru_cache(maxsize=1 << 20)
def probe(path: str) -> tuple[int, int, int]:
    """Reads the header of an audio file: samples, sample rate in Hz, channels.

    Raises:
        UtteranceError: There is no such file, or its header cannot be read.
    """
    soundfile = import_package("soundfile")
    if not os.path.isfile(path):
        raise UtteranceError(ExclusionReason.NO_AUDIO, f"there is no file {path}")
    try:
        info = soundfile.info(path)
    except (soundfile.SoundFileError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(error) from None
    return int(info.frames), int(info.samplerate), int(info.channels)


def _bounds(utterance: Utterance, frames: int, rate: int) -> tuple[int, int]:
    """The first sample of an utterance in its recording, and the one past its last."""
    if not frames:
        raise UtteranceError(ExclusionReason.UNREADABLE, "it holds no samples")
    length = frames / rate
    end = length if utterance.end is None else utterance.end
    # Compared in seconds: a time beyond all numbers of samples cannot be made one.
    if utterance.start >= length or end > length + _SLACK_S:
        raise UtteranceError(
            ExclusionReason.SEGMENT,
            f"{utterance.start:g} to {end:g} s of a recording of {length:.2f} s",
        )
    first = round(utterance.start * rate)
    return first, frames if utterance.end is None else min(round(end * rate), frames)


def _read(file: Any, count: int, channel: int) -> Samples:
    """Reads a channel, as many samples as there are, whatever the header promises."""
    blocks = [np.zeros(0)]
    size = _BLOCK // int(file.channels)
    while count > 0:
        block = file.read(min(count, size), dtype="float64", always_2d=True)
        if not len(block):
            break
        blocks.append(block[:, channel] * _SCALE)
        count -= len(block)
    return np.concatenate(blocks)


@lru_cache(maxsize=1)
def run_command(command: str) -> bytes:
    """What a command writes; that of the last one is kept for the next segment of its recording.

    Raises:
        UtteranceError: It fails, or takes longer than 5 minutes.
    """
    try:
        done = subprocess.run(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _unreadable(error) from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").split("\n")
        why = next((line.strip() for line in reversed(message) if line.strip()), "no message")
        detail = f"command {command!r} ended with {done.returncode}: {why}"
        raise UtteranceError(ExclusionReason.UNREADABLE, detail)
    return done.stdout


def _unreadable(error: Exception) -> UtteranceError:
    return UtteranceError(ExclusionReason.UNREADABLE, " ".join(str(error).split()))
