"""Where the utterances of a PREP come from: its file `sources.jsonl`, a line an utterance."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.json_lines import describe_fault, read_json_lines

SOURCES_FILE = "sources.jsonl"


class Source(BaseModel):
    """Where an utterance comes from.

    Attributes:
        id: Its name.
        text: Its transcript; None: it has none.
        recording: The name of its recording.
        audio: The recording's file; None: a command wrote it, or there was no audio.
        channel: Which channel of it, from 0.
        start: Where the utterance begins in it, in seconds.
        speed: The speed perturbation factor.
        rate: The sample rate in Hz that the features were computed at; None: elsewhere.
    """

    id: str
    text: str | None = None
    recording: str
    audio: str | None = None
    channel: NonNegativeInt = 0
    start: FiniteFloat = 0.0
    speed: FiniteFloat = 1.0
    rate: PositiveInt | None = None

    @classmethod
    def of(cls, utterance: Utterance, rate: int | None) -> Source:
        """That of an utterance; without a rate its features were computed elsewhere."""
        is_file = rate is not None and not utterance.is_command
        return cls(
            id=utterance.id,
            text=utterance.transcript,
            recording=utterance.recording,
            audio=os.path.abspath(utterance.audio) if is_file else None,
            channel=utterance.channel,
            start=utterance.start,
            speed=utterance.speed,
            rate=rate,
        )


def sources_text(utterances: Iterable[Utterance], rate: int | None) -> str:
    """The contents of `sources.jsonl`."""
    sources = (Source.of(utterance, rate) for utterance in utterances)
    return "".join(source.model_dump_json(exclude_none=True) + "\n" for source in sources)


def read_sources(path: Path) -> list[Source]:
    """Reads `sources.jsonl`.

    Raises:
        UserError: It cannot be read, or a line does not say where an utterance comes from.
    """
    sources = []
    for number, facts in read_json_lines(path):
        try:
            sources.append(Source.model_validate(facts))
        except ValidationError as error:
            raise UserError(describe_fault(path, number, error)) from None
    return sources
