"""lhotse's cuts: a manifest with a cut a line, as `CutSet.to_file("cuts.jsonl.gz")` writes it.

The lines are read as they are; lhotse need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, FiniteFloat, StringConstraints, ValidationError

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason, Exclusions
from unisono.speech.corpus.json_lines import describe_fault, read_json_lines

# lhotse rounds times to so many digits of a second, and so may a sum of two fall below 0.
_DIGITS = 8
_SLACK_S = 1e-3

_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Kind(BaseModel):
    type: _Name
    id: _Name


class _AudioSource(BaseModel):
    type: str
    channels: list[int]
    source: str


class _Recording(BaseModel):
    id: _Name
    sources: list[_AudioSource]
    transforms: list[Any] | None = None


class _Supervision(BaseModel):
    id: _Name
    start: FiniteFloat
    duration: FiniteFloat
    channel: int | list[int]
    text: str | None = None
    speaker: str | None = None


class _Cut(BaseModel):
    id: _Name
    start: FiniteFloat
    duration: FiniteFloat
    channel: int | list[int]
    supervisions: list[_Supervision]
    recording: _Recording | None = None


def read_cuts(manifest: Path, exclusions: Exclusions) -> Iterator[Utterance]:
    """Yields the utterances of cuts: their supervisions, or the whole cut where it has none.

    An utterance has its supervision's id and speaker; without a speaker it is its own. It is all
    that the supervision spans, also where the cut ends earlier. A relative path is taken from the
    working directory, as by lhotse. No audio is read.

    Args:
        manifest: The file, packed with gzip or not.
        exclusions: Receives what is no plain part of an audio file.

    Raises:
        UserError: The file cannot be read, or a line is no cut.
    """
    for number, facts in read_json_lines(manifest):
        try:
            kind = _Kind.model_validate(facts)
            plain = kind.type in ("MonoCut", "MultiCut")
            cut = _Cut.model_validate(facts) if plain else None
        except ValidationError as error:
            raise UserError(
                f"{describe_fault(manifest, number, error)}; each line must be a cut (`lhotse cut "
                "simple` makes cuts from recordings and supervisions)"
            ) from None
        if cut is None:
            exclusions.add(_plain(kind.id), ExclusionReason.COMPUTED, f"a {_plain(kind.type)}")
            continue
        whole = _Supervision(id=cut.id, start=0.0, duration=cut.duration, channel=cut.channel)
        for supervision in cut.supervisions or [whole]:
            utterance = _utterance(cut, supervision, exclusions)
            if utterance is not None:
                yield utterance


def _utterance(cut: _Cut, supervision: _Supervision, exclusions: Exclusions) -> Utterance | None:
    name = _plain(supervision.id)
    start = round(cut.start + supervision.start, _DIGITS)
    recording, channels = cut.recording, supervision.channel
    if isinstance(channels, int):
        channels = [channels]
    if recording is None:
        exclusions.add(name, ExclusionReason.NO_AUDIO, f"cut {cut.id} has no recording")
        return None
    if recording.transforms:
        exclusions.add(name, ExclusionReason.COMPUTED, f"transforms of recording {recording.id}")
        return None
    if start < -_SLACK_S or not supervision.duration > 0:
        detail = f"{supervision.duration:g} s from {start:g} s on"
        exclusions.add(name, ExclusionReason.SEGMENT, detail)
        return None
    if len(channels) != 1:
        exclusions.add(name, ExclusionReason.CHANNEL, f"channels {channels}: give it one")
        return None
    source = next((s for s in recording.sources if channels[0] in s.channels), None)
    if source is None:
        detail = f"recording {recording.id} has no channel {channels[0]}"
        exclusions.add(name, ExclusionReason.CHANNEL, detail)
        return None
    if source.type not in ("file", "command"):
        exclusions.add(name, ExclusionReason.COMPUTED, f"audio of type {source.type!r}")
        return None
    return Utterance(
        id=name,
        speaker=_plain(supervision.speaker or "") or name,
        words=tuple((supervision.text or "").split()),
        recording=_plain(recording.id),
        audio=f"{source.source} |" if source.type == "command" else source.source,
        start=max(0.0, start),
        end=round(start + supervision.duration, _DIGITS),
        channel=source.channels.index(channels[0]),
        transcribed=supervision.text is not None,
    )


def _plain(name: str) -> str:
    """A name without the spaces that would divide it in Kaldi's tables."""
    return "_".join(name.split())
