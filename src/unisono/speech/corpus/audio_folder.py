"""Audio folders as Hugging Face's `audiofolder` has them: files, and a table of what is said."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.json_lines import describe_fault, read_json_lines

METADATA_FILES = ("metadata.csv", "metadata.jsonl")
"""The table of a folder: one of these."""


class _Row(BaseModel):
    """What is read of a row; other columns are left alone."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    file_name: str = Field(min_length=1)
    transcription: str | None = Field(
        default=None, validation_alias=AliasChoices("transcription", "text")
    )
    speaker: str | None = Field(
        default=None, validation_alias=AliasChoices("speaker", "speaker_id")
    )


def read_audio_folder(metadata: Path, channel: int) -> Iterator[Utterance]:
    """Yields the utterances of an audio folder, one a row of its table.

    An utterance is named after its file, without the ending; where no speaker is given, it is
    its own. No audio is read.

    Args:
        metadata: The table, `metadata.csv` or `metadata.jsonl`, beside or above the audio.
        channel: Which channel of the audio, from 0.

    Raises:
        UserError: The table cannot be read, or a row lacks its file name.
    """
    rows = _read_csv(metadata) if metadata.suffix == ".csv" else read_json_lines(metadata)
    for number, facts in rows:
        try:
            row = _Row.model_validate(facts)
        except ValidationError as error:
            raise UserError(describe_fault(metadata, number, error)) from None
        file = PurePosixPath(row.file_name)
        name = "_".join(str(file.parent / file.stem).split())
        yield Utterance(
            id=name,
            speaker="_".join((row.speaker or "").split()) or name,
            words=tuple((row.transcription or "").split()),
            recording=name,
            audio=str(metadata.parent / row.file_name),
            channel=channel,
            transcribed=row.transcription is not None,
        )


def _read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number of each row's last line and its values by column."""
    number = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = list(reader.fieldnames or [])
            if "file_name" not in columns:
                found = ", ".join(columns) or "none"
                raise UserError(f"{path} has no column file_name (it has {found}): add one")
            for row in reader:
                number = reader.line_num
                if None in row or None in row.values():
                    raise UserError(
                        f"{path}, line {number} does not have {len(columns)} values, one "
                        "for each column of the header: put text that contains commas in quotes"
                    )
                yield number, row
    except csv.Error as error:
        raise UserError(f"{path} is not CSV after line {number}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text after line {number}") from None
