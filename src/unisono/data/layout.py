"""The files of a PREP: what each holds, how it is read and what is said when it is broken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, JsonValue, NonNegativeInt, PositiveInt, ValidationError

from unisono.data.split import Part
from unisono.errors import UserError

FORMAT_VERSION = 1
HEADER_FILE = "prep.json"
TABLE_FILE = "utterances.json"
_HASH_BYTES = 1 << 24
# What numpy raises for a damaged file: it parses the header of an array as Python.
_UNREADABLE = (OSError, ValueError, TypeError, OverflowError, MemoryError, SyntaxError, TokenError)


class Header(BaseModel):
    """The contents of prep.json; docs/reference/prep.md says what each field is."""

    format_version: int
    made_by: dict[str, JsonValue]
    frames: PositiveInt
    dimension: PositiveInt
    states: NonNegativeInt
    utterances: PositiveInt
    speakers: PositiveInt
    frame_type: Literal["float16", "float32"]
    state_type: Literal["int16", "int32"]
    frame_shift_s: Annotated[float, Field(gt=0, le=60)] | None
    phones: NonNegativeInt = 0
    labels: NonNegativeInt = 0
    fingerprint: str

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The type and shape of each array, by the name of its file without the ending."""
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {
            "frames": (self.frame_type, (self.frames, self.dimension)),
            "starts": ("int64", (self.utterances + 1,)),
            "speaker_mean": ("float32", (self.speakers, self.dimension)),
            "speaker_std": ("float32", (self.speakers, self.dimension)),
        }
        if self.states:
            arrays["states"] = (self.state_type, (self.frames,))
            arrays["priors"] = ("float32", (self.states,))
        if self.phones:
            arrays["labels"] = ("int16", (self.labels,))
            arrays["label_starts"] = ("int64", (self.utterances + 1,))
        return arrays


class UtteranceTable(BaseModel):
    """The contents of utterances.json: a column a field, a row an utterance; and the speakers."""

    speakers: list[str]
    id: list[str]
    speaker: list[NonNegativeInt]
    part: list[Part]


_Model = TypeVar("_Model", bound=BaseModel)


def fingerprint(
    arrays: Mapping[str, NDArray[Any]], table: UtteranceTable, shift_s: float | None
) -> str:
    """The sha256 of a PREP's contents; what made it is left out, so equal data agree.

    Args:
        arrays: The arrays, by the names of their files without the ending.
        table: The table of utterances.
        shift_s: The frame shift in seconds, where it is known.

    Returns:
        64 hexadecimal digits.
    """
    facts = {"frame_shift_s": shift_s, **table.model_dump(mode="json")}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        rows = max(_HASH_BYTES // array[:1].nbytes, 1)
        for first in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[first : first + rows]).data)
    return digest.hexdigest()


def read_header(path: Path) -> Header:
    """Reads prep.json of the PREP at `path`, the version first.

    Raises:
        UserError: There is no PREP, its version is unknown, or its header is broken.
    """
    if not path.is_dir():
        raise UserError(f"no PREP at {path}: there is no such directory; make it with prepare")
    if not (path / HEADER_FILE).is_file():
        raise UserError(f"{path} is not a PREP: it has no {HEADER_FILE}; make it with prepare")
    content = _read_json(path, HEADER_FILE)
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(
            f"PREP {path} has format_version {version}, and this version of unisono reads "
            f"{FORMAT_VERSION}: prepare it again"
        )
    return _parse(path, HEADER_FILE, Header, content)


def read_table(path: Path) -> UtteranceTable:
    """Reads utterances.json of the PREP at `path`.

    Raises:
        UserError: It is missing or broken.
    """
    return _parse(path, TABLE_FILE, UtteranceTable, _read_json(path, TABLE_FILE))


def map_array(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Maps one array of the PREP at `path` and checks its header and the length of its file.

    Raises:
        UserError: It is missing, torn, or of another type or shape than prep.json says.
    """
    file = path / f"{name}.npy"
    if not file.is_file():
        raise broken(path, f"{file.name} is missing")
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except _UNREADABLE as error:
        raise broken(path, f"{file.name} is torn ({error})") from error
    if array.dtype != np.dtype(dtype) or array.shape != shape or not array.flags.c_contiguous:
        raise broken(
            path,
            f"{file.name} is {array.dtype} {array.shape}, and {HEADER_FILE} says {dtype} {shape}",
        )
    size = file.stat().st_size
    if size != array.offset + array.nbytes:
        raise broken(path, f"{file.name} has {size} bytes, not {array.offset + array.nbytes}")
    return array


def broken(path: Path, what: str) -> UserError:
    """The error for a PREP that is not as it was written."""
    one_line = " ".join(what.split())
    return UserError(f"PREP {path} is broken: {one_line}; prepare it again")


def _read_json(path: Path, name: str) -> Any:
    try:
        return json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise broken(path, f"{name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise broken(path, f"{name} cannot be read ({error})") from error


def _parse(path: Path, name: str, model: type[_Model], content: object) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise broken(path, f"{name}, {where}: {first['msg']}") from error
