"""Kaldi data directories: utterances, their audio, transcripts and speakers."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from unisono.errors import UserError
from unisono.speech.corpus.exclusions import ExclusionReason, Exclusions

GZIP = b"\x1f\x8b"
"""What a file packed with gzip begins with."""


@dataclass(frozen=True)
class _Segment:
    """The part of a recording that is an utterance."""

    recording: str
    start: float = 0.0
    end: float | None = None
    channel: int | None = None


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """One utterance.

    Attributes:
        id: Its name.
        speaker: Its speaker.
        words: The transcript; empty where none was asked for.
        recording: The name of its recording.
        audio: The recording's file, or where its features are in an archive, or a command that
            ends in `|` and writes either.
        start: Where it begins in the recording, in seconds.
        end: Where it ends, in seconds; None: with the recording.
        channel: Which channel of the recording, from 0.
        transcribed: Whether there is a transcript, be it an empty one.
        spoken: The transcript before out-of-vocabulary words in `words` were replaced, if any were.
        speed: The speed perturbation factor.
        volume: The factor applied to the samples for the network's features.
    """

    id: str
    speaker: str
    words: tuple[str, ...]
    recording: str
    audio: str
    start: float = 0.0
    end: float | None = None
    channel: int = 0
    transcribed: bool = False
    spoken: tuple[str, ...] = ()
    speed: float = 1.0
    volume: float = 1.0

    def at_speed(self, speed: float) -> Utterance:
        """A copy at another speed, of another speaker."""
        prefix = f"sp{speed:g}-"
        return replace(self, id=prefix + self.id, speaker=prefix + self.speaker, speed=speed)

    @property
    def transcript(self) -> str | None:
        """What is said, out-of-vocabulary words included; None: there is no transcript."""
        return " ".join(self.spoken or self.words) if self.transcribed else None

    @property
    def is_command(self) -> bool:
        """Whether the audio comes from a command."""
        return self.audio.endswith("|")


def read_data_directory(
    folder: Path,
    exclusions: Exclusions,
    *,
    transcribed: bool,
    allow_pipes: bool = False,
    channel: int = 0,
    features: bool = False,
) -> list[Utterance]:
    """Reads `wav.scp`, `utt2spk`, and where they are there or needed `segments` and `text`.

    A path in wav.scp is taken from the folder of that file. No audio is read.

    Args:
        folder: The data directory.
        exclusions: Receives the utterances that cannot be used.
        transcribed: Whether utterances without a transcript are excluded.
        allow_pipes: Whether wav.scp may hold commands.
        channel: The channel of recordings where `segments` does not give one.
        features: Whether to read `feats.scp`, a line an utterance, instead of audio.

    Returns:
        The usable utterances, in the order of their names.

    Raises:
        UserError: A file is missing or is no text, or no utterance can be used.
    """
    if not folder.is_dir():
        raise UserError(f"no data directory at {folder}")
    source = "feats.scp" if features else "wav.scp"
    recordings = _read_table(folder / source, exclusions)
    if not (folder / "utt2spk").is_file():
        raise UserError(
            f"{folder} has no utt2spk: write one line per utterance, its name and its speaker "
            "(with unknown speakers: its name twice)"
        )
    speakers = _read_table(folder / "utt2spk", exclusions)
    has_text = transcribed or (folder / "text").is_file()
    texts = _read_table(folder / "text", exclusions) if has_text else {}
    if (folder / "segments").is_file() and not features:
        segments = _read_segments(folder / "segments", exclusions)
    else:
        segments = {name: _Segment(name) for name in recordings}
    for name in texts:
        if name not in segments:
            exclusions.add(name, ExclusionReason.NO_AUDIO, "it is in text only")
    found = []
    for name, segment in segments.items():
        audio = recordings.get(segment.recording, "")
        if not audio:
            exclusions.add(
                name, ExclusionReason.NO_AUDIO, f"{source} has nothing for {segment.recording}"
            )
        elif not speakers.get(name, "").split():
            exclusions.add(name, ExclusionReason.NO_SPEAKER)
        else:
            found.append(
                Utterance(
                    id=name,
                    speaker=speakers[name].split()[0],
                    words=tuple(texts.get(name, "").split()),
                    recording=segment.recording,
                    audio=audio if audio.endswith("|") else str(folder / audio),
                    start=segment.start,
                    end=segment.end,
                    channel=channel if segment.channel is None else segment.channel,
                    transcribed=name in texts,
                )
            )
    return usable(found, folder, exclusions, transcribed=transcribed, allow_pipes=allow_pipes)


def usable(
    found: Iterable[Utterance],
    data: Path,
    exclusions: Exclusions,
    *,
    transcribed: bool,
    allow_pipes: bool,
) -> list[Utterance]:
    """Those of the utterances found in `data` that can be used, in the order of their names.

    Raises:
        UserError: There is none.
    """
    by_name: dict[str, Utterance] = {}
    for utterance in found:
        if by_name.setdefault(utterance.id, utterance) != utterance:
            exclusions.add(utterance.id, ExclusionReason.DUPLICATE, f"in {data.name}")
        elif utterance.is_command and not allow_pipes:
            exclusions.add(utterance.id, ExclusionReason.PIPE, utterance.audio)
        elif transcribed and not utterance.words:
            exclusions.add(utterance.id, ExclusionReason.NO_TEXT)
    kept = [utterance for name, utterance in sorted(by_name.items()) if name not in exclusions]
    if not kept:
        raise no_usable_utterance(data, exclusions)
    return kept


def no_usable_utterance(data: Path, exclusions: Exclusions) -> UserError:
    """The error for a corpus without a usable utterance."""
    why = "; ".join(exclusions.summary()) or "it lists none"
    return UserError(f"no usable utterance in {data}: {why}")


def read_lines(path: Path) -> list[str]:
    """Reads the lines of a text file, packed with gzip or not, that are not blank.

    Raises:
        UserError: The file is missing or is not UTF-8 text.
    """
    try:
        content = path.read_bytes()
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"cannot unpack {path}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise UserError(f"{path} is not text: it holds a zero byte at {text.index(chr(0))}")
    # Not splitlines: U+2028 and its kin may stand inside a word.
    lines = (line.strip(" \t\r\f\v") for line in text.split("\n"))
    return [line for line in lines if line.split()]


def _read_table(path: Path, exclusions: Exclusions) -> dict[str, str]:
    """Reads lines of a name and its value; names with two values are excluded."""
    table: dict[str, str] = {}
    for line in read_lines(path):
        name, *rest = line.split(maxsplit=1)
        value = rest[0] if rest else ""
        if table.setdefault(name, value) != value:
            exclusions.add(name, ExclusionReason.DUPLICATE, f"in {path.name}")
    return table


def _read_segments(path: Path, exclusions: Exclusions) -> dict[str, _Segment]:
    segments: dict[str, _Segment] = {}
    for name, value in _read_table(path, exclusions).items():
        try:
            recording, first, last, *channel = value.split()
            start, end, side = float(first), float(last), [int(number) for number in channel]
            good = len(side) <= 1 and min(side, default=0) >= 0 and 0 <= start < math.inf
            good = good and (end == -1 or start < end < math.inf)
        except ValueError:
            good = False
        if good:
            segments[name] = _Segment(recording, start, None if end == -1 else end, *side)
        else:
            detail = f"not 'recording start end', and a channel if need be: {value!r}"
            exclusions.add(name, ExclusionReason.SEGMENT, detail)
    return segments
