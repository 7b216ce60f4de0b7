"""Frames of many utterances in a memory-mapped file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.errors import UserError

Frames = NDArray[np.float32]


class FrameStore:
    """Appends frames x D arrays to a file, and returns them as views of the mapped file."""

    def __init__(self, path: Path) -> None:
        """Makes the file.

        Raises:
            UserError: It cannot be made.
        """
        self._path = path
        self._starts = [0]
        self._width = 0
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise _full(path, error) from None

    def append(self, frames: Frames) -> None:
        """Appends the frames of an utterance.

        Raises:
            UserError: The disk is full.
        """
        self._width = frames.shape[1]
        self._starts.append(self._starts[-1] + len(frames))
        try:
            self._file.write(np.ascontiguousarray(frames, dtype=np.float32).data)
        except OSError as error:
            raise _full(self._path, error) from None

    def arrays(self) -> list[Frames]:
        """All arrays, in order; nothing can be appended any more.

        Raises:
            UserError: The disk is full.
        """
        try:
            self._file.close()
        except OSError as error:
            raise _full(self._path, error) from None
        if self._starts[-1] == 0:
            return [np.zeros((0, self._width), dtype=np.float32) for _ in self._starts[1:]]
        shape = self._starts[-1], self._width
        whole = np.asarray(np.memmap(self._path, dtype=np.float32, mode="r", shape=shape))
        return [
            whole[first:last] for first, last in zip(self._starts, self._starts[1:], strict=False)
        ]


def concatenate_to_file(
    pieces: Iterable[NDArray[Any]], path: Path, shape: tuple[int, int], dtype: str
) -> Any:
    """Writes arrays one after the other into a .npy file, and returns it mapped.

    Args:
        pieces: Frames x D arrays.
        path: The file to make.
        shape: Of all of them together.
        dtype: The type of the numbers in the file.

    Raises:
        UserError: The disk is full.
    """
    try:
        with path.open("wb") as file:
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in pieces:
                file.write(np.ascontiguousarray(piece, dtype=dtype).data)
    except OSError as error:
        raise _full(path, error) from None
    return np.load(path, mmap_mode="r")


def _full(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; make room there")
