"""Kaldi archives: feature matrices and integer vectors in .ark files, and .scp files.

Binary objects are read and written by kaldiio. Its readers of whole archives and of .scp lines
are not used: they unpickle objects and run commands that a file names, and they take a text matrix
for integers if its first number is whole. kaldi-native-io, the other package for this, ends the
process or never returns when the header of a file is damaged.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason
from unisono.speech.dependencies import import_package
from unisono.speech.features.audio import UtteranceError, run_command

Matrix = NDArray[np.float32]
Ints = NDArray[np.int32]

_BINARY = b"\0B"
_MAX_TEXT = 1 << 28
_RANGE = r"(\d{0,9}):?(\d{0,9})"
_POINTER = re.compile(rf"(.+?)(?::(\d{{1,18}}))?(?:\[{_RANGE}(?:,{_RANGE})?\])?", re.DOTALL)


class BadArchiveError(Exception):
    """An archive, or an object in it, that cannot be read; says why."""


@dataclass(frozen=True)
class Pointer:
    """Where an object is: the value of a line of an .scp file.

    Attributes:
        path: The archive.
        offset: The object's first byte.
        rows: The first row to take and the one past the last; None: all.
        columns: Likewise.
    """

    path: str
    offset: int
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None

    @classmethod
    def of(cls, text: str) -> Pointer:
        """Reads `path:offset[first:last,first:last]`, of which all but the path may be missing.

        Raises:
            BadArchiveError: It is something else.
        """
        found = _POINTER.fullmatch(text)
        if found is None:
            raise BadArchiveError(f"{text!r} is not path:offset")
        path, offset, *ends = found.groups()
        return cls(path, int(offset or 0), _bounds(*ends[:2]), _bounds(*ends[2:]))


def _bounds(first: str | None, last: str | None) -> tuple[int, int] | None:
    return (int(first), int(last or first) + 1) if first else None


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns whatever a damaged object raises into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise BadArchiveError(f"cannot read {where}: {error.strerror}") from None
    except (BadArchiveError, ValueError, AssertionError, struct.error, MemoryError) as error:
        reason = " ".join(str(error).split()) or "damaged or truncated"
        raise BadArchiveError(f"{where}: {reason}") from None
    except (OverflowError, RuntimeError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadArchiveError(f"{where}: {reason}") from None


def _read_object(stream: IO[bytes]) -> NDArray[Any]:
    """Reads the object that begins here: a matrix, or a vector of integers."""
    start = stream.tell()
    flag = stream.read(3)
    if flag[:2] != _BINARY:
        stream.seek(start)
        return _read_text(stream)
    stream.seek(start)
    kaldiio = import_package("kaldiio.matio")
    if flag == _BINARY + b"\4":
        return np.asarray(kaldiio.read_int32vector(stream))
    array: NDArray[Any] = kaldiio.read_matrix_or_vector(stream)
    if array.ndim != 2:
        raise BadArchiveError("a vector of floats where a matrix is needed")
    return array.astype(np.float32)


def _read_text(stream: IO[bytes]) -> NDArray[Any]:
    """Reads a matrix between brackets, or a line of integers."""
    text = stream.readline(_MAX_TEXT)
    if b"[" not in text:
        return np.array(text.split(), dtype=np.int32)
    while b"]" not in text:
        line = stream.readline(_MAX_TEXT)
        if not line or len(text) > _MAX_TEXT:
            raise BadArchiveError("a text matrix without an end")
        text += line
    rows = [line.split() for line in text.strip(b" []\n").split(b"\n") if line.split()]
    return np.array(rows, dtype=np.float32).reshape(len(rows), -1 if rows else 0)


def _load(pointer: Pointer, content: bytes | None = None) -> NDArray[Any]:
    where = f"{pointer.path}:{pointer.offset}"
    with _reading(where):
        if content is None and not os.path.isfile(pointer.path):
            raise BadArchiveError("there is no such file")
        with open(pointer.path, "rb") if content is None else io.BytesIO(content) as stream:
            stream.seek(pointer.offset)
            return _read_object(stream)


def read_matrix(pointer: Pointer, content: bytes | None = None) -> Matrix:
    """Reads a matrix, compressed or not.

    Args:
        pointer: Where it is.
        content: What to read instead of the pointer's file.

    Raises:
        BadArchiveError: There is none, it is damaged, or its numbers are not finite.
    """
    matrix = _load(pointer, content)
    where = f"{pointer.path}:{pointer.offset}"
    if matrix.ndim != 2 or not matrix.size:
        raise BadArchiveError(f"{where}: no matrix of features")
    for axis, bounds in enumerate((pointer.rows, pointer.columns)):
        if bounds is not None:
            if not bounds[0] < bounds[1] <= matrix.shape[axis]:
                raise BadArchiveError(f"{where}: a range outside a matrix of {matrix.shape}")
            matrix = matrix[slice(*bounds)] if axis == 0 else matrix[:, slice(*bounds)]
    if not np.isfinite(matrix).all():
        raise BadArchiveError(f"{where}: numbers that are not finite")
    return np.ascontiguousarray(matrix)


def read_vector(pointer: Pointer) -> Ints:
    """Reads a vector of integers.

    Raises:
        BadArchiveError: There is none, or it is damaged.
    """
    vector = _load(pointer)
    if vector.ndim != 1:
        raise BadArchiveError(f"{pointer.path}:{pointer.offset}: a matrix, not integers")
    return vector


def read_vectors(path: Path) -> Iterator[tuple[str, Ints]]:
    """Yields the name and contents of each integer vector of an archive.

    Raises:
        BadArchiveError: It cannot be read to its end; says how far it can.
    """
    with _reading(str(path)), path.open("rb") as stream:
        while True:
            start = stream.tell()
            with _reading(f"damaged at byte {start}"):
                name = import_package("kaldiio.matio").read_token(stream)
                if name is None:
                    return
                vector = _read_object(stream)
                if vector.ndim != 1:
                    raise BadArchiveError("a matrix, not integers")
            yield name.strip(), vector


def write_archive(ark: Path, scp: Path, objects: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Writes float matrices or integer vectors by their names, and the .scp file of them.

    Args:
        ark: The archive to write.
        scp: The .scp file to write.
        objects: A name and a frames x dimensions matrix, or a vector of integers, each.
    """
    kaldiio = import_package("kaldiio")
    with open(str(ark), "wb") as archive, scp.open("w", encoding="utf-8") as pointers:
        for name, value in objects:
            array = np.ascontiguousarray(value, dtype="<f4" if value.ndim == 2 else "<i4")
            kaldiio.save_ark(archive, {name: array}, scp=pointers)


@dataclass(frozen=True, kw_only=True)
class KaldiFeatureReader:
    """Reads the features of utterances whose `audio` points into an archive.

    Attributes:
        dimension: The dimension that they must have.
        bands: Whether they are log filterbank energies, or else cepstra.
    """

    dimension: int
    bands: bool

    def frames(self, utterance: Utterance) -> int:
        """The utterance's frames (0 for a command, which is not run for it).

        Raises:
            UtteranceError: It cannot be used.
        """
        if utterance.is_command:
            return 0
        frames, dimension = feature_shape(utterance.audio)
        self._check(dimension)
        return frames

    def read(self, utterance: Utterance) -> Matrix:
        """The utterance's features, frames x dimensions.

        Raises:
            UtteranceError: They cannot be read, or have another dimension.
        """
        matrix = _read_features(utterance.audio)
        self._check(matrix.shape[1])
        return matrix

    def _check(self, dimension: int) -> None:
        if dimension != self.dimension:
            detail = f"{dimension}, not {self.dimension}"
            raise UtteranceError(ExclusionReason.DIMENSION, detail)


@lru_cache(maxsize=1 << 20)
def feature_shape(source: str) -> tuple[int, int]:
    """Frames and dimension of features; kaldiio reads no header alone, so they are read for it.

    Raises:
        UtteranceError: They cannot be read.
    """
    frames, dimension = _read_features(source).shape
    return frames, dimension


def _read_features(source: str) -> Matrix:
    """Reads the features that a value in feats.scp, a pointer or a command, leads to."""
    try:
        if source.endswith("|"):
            return read_matrix(Pointer(f"output of {source}", 0), run_command(source[:-1]))
        return read_matrix(Pointer.of(source))
    except BadArchiveError as error:
        raise UtteranceError(ExclusionReason.UNREADABLE_FEATURES, str(error)) from None
