"""Files with a JSON object a line, packed with gzip or not, read line by line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import GZIP


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number of each line that is not blank, from 1, and its object.

    Raises:
        UserError: The file cannot be read, or a line is no JSON object.
    """
    number = 0
    try:
        with path.open("rb") as plain:
            packed = plain.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _object(path, number, line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"cannot unpack {path} after line {number}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number} is not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}, line {number} is not a JSON object")
    return found


def describe_fault(path: Path, number: int, error: ValidationError) -> str:
    """Says in one line where an object of a file is not what it must be."""
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"{path}, line {number}: {key}: {message}"
