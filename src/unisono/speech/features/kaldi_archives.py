"""Kaldi archives: matrices and integer vectors in .ark files, and .scp files that point into them.

An archive is a row of objects, each after its name and a space. A binary object begins with a zero
byte and `B`. Integers follow a byte that holds their size, 4; then

    `FM ` or `DM `   rows, columns, and the numbers in single or double precision
    `CM `, `CM2 `,   compressed: smallest number m and range r (floats), rows and columns (plain
    `CM3 `           integers), then the numbers. CM2: m + r v / 65535, v of 16 bits; CM3:
                     m + r v / 255, v of 8. CM: four 16-bit quantiles of each column (0, 25, 75
                     and 100%), then column after column of bytes v, linear between the quantiles
                     at v = 0, 64, 192 and 255
    a size           an integer vector, every element after its own byte 4

Anything else is text: an integer vector up to the end of the line, a matrix between brackets.
What a header promises is compared with what is left of the file before anything is read, so that
a broken file is told of and cannot exhaust memory. Objects are never unpickled.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
Ints = NDArray[np.int32]

_LONGEST_NAME = 4096
_LONGEST_TEXT = 1 << 28
_RANGE = r"(\d*):?(\d*)"
_POINTER = re.compile(rf"(.+?)(?::(\d+))?(?:\[{_RANGE}(?:,{_RANGE})?\])?", re.DOTALL)


class BadArchiveError(Exception):
    """An archive, or an object in it, that cannot be read; says why."""


@dataclass(frozen=True)
class Pointer:
    """Where an object is.

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
        if found is None or len(found[2] or "") > 18:
            raise BadArchiveError(f"{text!r} is not path:offset")
        path, offset, *ends = found.groups()
        sides = [_side(*ends[:2]), _side(*ends[2:])]
        return cls(path, int(offset or 0), *sides)


def _side(first: str | None, last: str | None) -> tuple[int, int] | None:
    if not first or len(first) > 9 or len(last or "") > 9:
        return None
    return int(first), int(last or first) + 1


class _Bytes:
    """A file that knows how much of it is left."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size

    def left(self) -> int:
        return self._size - self._file.tell()

    def take(self, count: int, what: str) -> bytes:
        if count > self.left():
            raise BadArchiveError(f"{what}: {count} bytes are promised and {self.left()} are left")
        return self._file.read(count)

    def integer(self, what: str) -> int:
        size, value = struct.unpack("<bi", self.take(5, what))
        if size != 4 or value < 0:
            raise BadArchiveError(f"{what} is no count")
        return int(value)

    def line(self) -> bytes:
        line = self._file.readline(_LONGEST_TEXT)
        if len(line) == _LONGEST_TEXT:
            raise BadArchiveError("a line without an end")
        return line

    def name(self) -> str | None:
        """The name before an object; None at the end of the archive."""
        name = b""
        while len(name) <= _LONGEST_NAME:
            byte = self._file.read(1)
            if not byte and not name.strip():
                return None
            if byte in (b" ", b""):
                return name.strip().decode("utf-8", errors="strict")
            name += byte
        raise BadArchiveError("a name without an end")

    def seek(self, offset: int) -> None:
        self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()


@dataclass(frozen=True)
class _Header:
    """What a binary object says of itself: its token, shape, and for compressed ones its scale."""

    token: bytes
    rows: int
    columns: int
    least: float = 0.0
    span: float = 0.0

    @property
    def size(self) -> int:
        """The bytes that follow."""
        width = {b"FM": 4, b"DM": 8, b"CM2": 2, b"CM3": 1, b"CM": 1, b"": 5}[self.token]
        quantiles = 8 * self.columns if self.token == b"CM" else 0
        return self.rows * self.columns * width + quantiles


def _header(file: _Bytes) -> _Header | None:
    """The header of the object that begins here; None: it is text."""
    first = file.take(min(2, file.left()), "an object")
    if first != b"\0B":
        file.seek(file.tell() - len(first))
        return None
    start = file.tell()
    if file.take(1, "an object") == b"\4":
        file.seek(start)
        return _Header(b"", file.integer("a vector's size"), 1)
    file.seek(start)
    token, _, _ = file.take(min(4, file.left()), "an object").partition(b" ")
    file.seek(start + len(token) + 1)
    if token in (b"FM", b"DM"):
        return _Header(token, file.integer("rows"), file.integer("columns"))
    if token in (b"CM", b"CM2", b"CM3"):
        least, span, rows, columns = struct.unpack("<ffii", file.take(16, "a compressed matrix"))
        if rows < 0 or columns < 0:
            raise BadArchiveError("a compressed matrix of fewer than no rows")
        return _Header(token, rows, columns, least, span)
    raise BadArchiveError(f"an object of unknown kind {token!r}")


def _values(file: _Bytes, header: _Header) -> NDArray[Any]:
    if header.size > file.left():
        raise BadArchiveError(
            f"{header.rows} x {header.columns} numbers are promised, {file.left()} bytes are left"
        )
    data = file.take(header.size, "numbers")
    shape = header.rows, header.columns
    if header.token == b"":
        pairs = np.frombuffer(data, dtype=[("size", "i1"), ("value", "<i4")])
        if (pairs["size"] != 4).any():
            raise BadArchiveError("an integer that does not have 4 bytes")
        return pairs["value"].astype(np.int32)
    if header.token in (b"FM", b"DM"):
        kind = "<f4" if header.token == b"FM" else "<f8"
        return np.frombuffer(data, dtype=kind).reshape(shape).astype(np.float32)
    if header.token == b"CM":
        return _by_quantiles(data, header)
    kind, most = ("<u2", 65535.0) if header.token == b"CM2" else ("u1", 255.0)
    steps = np.frombuffer(data, dtype=kind).reshape(shape).astype(np.float32)
    return np.asarray(np.float32(header.least) + np.float32(header.span / most) * steps)


def _by_quantiles(data: bytes, header: _Header) -> Matrix:
    """Numbers of a matrix whose columns are each quantised between four quantiles."""
    marks = np.frombuffer(data, dtype="<u2", count=4 * header.columns).reshape(-1, 4)
    levels = np.float32(header.least) + np.float32(header.span / 65535) * marks.astype(np.float32)
    steps = np.frombuffer(data, dtype="u1", offset=8 * header.columns)
    steps = steps.reshape(header.columns, header.rows)
    numbers = np.empty((header.rows, header.columns), dtype=np.float32)
    for column, (own, at) in enumerate(zip(steps, levels, strict=True)):
        numbers[:, column] = np.interp(own, [0, 64, 192, 255], at)
    return numbers


def _text_matrix(file: _Bytes) -> Matrix:
    rows: list[list[float]] = []
    read = 0
    ended = False
    while not ended:
        line = file.line()
        read += len(line)
        if not line or read > _LONGEST_TEXT:
            raise BadArchiveError("a text matrix without an end")
        ended = b"]" in line
        fields = line.replace(b"[", b" ").partition(b"]")[0].split()
        if fields:
            rows.append([_number(field) for field in fields])
    if len({len(row) for row in rows}) > 1:
        raise BadArchiveError("a text matrix with rows of different lengths")
    return np.array(rows, dtype=np.float32).reshape(len(rows), -1 if rows else 0)


def _number(field: bytes) -> float:
    try:
        return float(field)
    except ValueError:
        raise BadArchiveError(f"{field!r} is no number") from None


def _text_vector(file: _Bytes) -> Ints:
    fields = file.line().replace(b"[", b" ").replace(b"]", b" ").split()
    try:
        return np.array([int(field) for field in fields], dtype=np.int32)
    except (ValueError, OverflowError):
        raise BadArchiveError("something that is neither a binary object nor integers") from None


@contextmanager
def _opened(pointer: Pointer, content: bytes | None = None) -> Iterator[_Bytes]:
    """The bytes from where a pointer points to."""
    path = pointer.path
    try:
        if content is None and not os.path.isfile(path):
            raise BadArchiveError(f"there is no file {path}")
        size = os.path.getsize(path) if content is None else len(content)
        with open(path, "rb") if content is None else io.BytesIO(content) as file:
            if pointer.offset > size:
                raise BadArchiveError(f"byte {pointer.offset} of a file of {size}")
            file.seek(pointer.offset)
            yield _Bytes(file, size)
    except OSError as error:
        raise BadArchiveError(f"cannot read {path}: {error.strerror}") from None


def read_shape(pointer: Pointer, content: bytes | None = None) -> tuple[int, int]:
    """Rows and columns of a matrix; of a binary one from its header alone.

    Raises:
        BadArchiveError: There is none, or it is broken.
    """
    with _opened(pointer, content) as stream:
        header = _header(stream)
        if header is None or pointer.rows or pointer.columns:
            rows, columns = read_matrix(pointer, content).shape
            return rows, columns
        if header.token == b"":
            raise BadArchiveError("integers where a matrix is needed")
        if header.size > stream.left():
            raise BadArchiveError("the matrix goes beyond the end of the file")
        return header.rows, header.columns


def read_matrix(pointer: Pointer, content: bytes | None = None) -> Matrix:
    """Reads a matrix, compressed or not.

    Args:
        pointer: Where it is.
        content: What to read instead of the pointer's file.

    Raises:
        BadArchiveError: There is none, it is broken, or its numbers are not finite.
    """
    with _opened(pointer, content) as stream:
        header = _header(stream)
        if header is not None and header.token == b"":
            raise BadArchiveError("integers where a matrix is needed")
        matrix = _text_matrix(stream) if header is None else _values(stream, header)
    for axis, side in enumerate((pointer.rows, pointer.columns)):
        if side is not None:
            if not side[0] < side[1] <= matrix.shape[axis]:
                raise BadArchiveError(f"a range outside a matrix of shape {matrix.shape}")
            matrix = matrix[slice(*side)] if axis == 0 else matrix[:, slice(*side)]
    if not np.isfinite(matrix).all():
        raise BadArchiveError("numbers that are not finite")
    return np.ascontiguousarray(matrix)


def read_vector(pointer: Pointer) -> Ints:
    """Reads an integer vector.

    Raises:
        BadArchiveError: There is none, or it is broken.
    """
    with _opened(pointer) as stream:
        header = _header(stream)
        if header is None:
            return _text_vector(stream)
        if header.token != b"":
            raise BadArchiveError("a matrix where integers are needed")
        return np.asarray(_values(stream, header))


def index_archive(path: Path) -> Iterator[tuple[str, Pointer]]:
    """Yields the name and place of each integer vector in an archive.

    Raises:
        BadArchiveError: It cannot be read to its end; says how far it can.
    """
    with _opened(Pointer(str(path), 0)) as stream:
        while True:
            start = stream.tell()
            try:
                name = stream.name()
                if name is None:
                    return
                place = stream.tell()
                header = _header(stream)
                if header is None:
                    stream.line()
                elif header.size > stream.left():
                    raise BadArchiveError("the object goes beyond the end of the file")
                else:
                    stream.seek(stream.tell() + header.size)
            except (BadArchiveError, UnicodeDecodeError) as error:
                raise BadArchiveError(f"{path} is broken at byte {start}: {error}") from None
            yield name, Pointer(str(path), place)


def write_archive(ark: Path, scp: Path, objects: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Writes float matrices or integer vectors, by their names, and the pointers to them.

    Args:
        ark: The archive to write.
        scp: The pointers to write.
        objects: A name and a frames x dimensions matrix, or a vector of integers, each.
    """
    with ark.open("wb") as file, scp.open("w", encoding="utf-8") as pointers:
        for name, value in objects:
            file.write(name.encode() + b" ")
            print(f"{name} {ark}:{file.tell()}", file=pointers)
            if value.ndim == 2:
                file.write(b"\0BFM " + struct.pack("<bibi", 4, len(value), 4, value.shape[1]))
                file.write(np.ascontiguousarray(value, dtype="<f4").data)
            else:
                pairs = np.empty(len(value), dtype=[("size", "i1"), ("value", "<i4")])
                pairs["size"], pairs["value"] = 4, value
                file.write(b"\0B" + struct.pack("<bi", 4, len(value)) + pairs.tobytes())
