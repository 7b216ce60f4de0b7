"""Weighted transducers as flat arrays, and as files that OpenFst reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_MAGIC = 2125659606
_VERSION = 2
_EXPANDED_AND_MUTABLE = 3
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("target", "<i4")])
_STATE_BYTES = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Fst:
    """A transducer over the tropical semiring: weights are costs, the smaller the better.

    Attributes:
        start: The state that it starts in.
        final: What it costs to end in each state; infinity: one cannot.
        source: The state that each arc leaves.
        target: The state that it leads to.
        input: Its input label; 0: none.
        output: Its output label; 0: none.
        weight: Its cost.
    """

    start: int
    final: Floats
    source: Ints
    target: Ints
    input: Ints
    output: Ints
    weight: Floats

    @classmethod
    def of(
        cls,
        arcs: Sequence[tuple[int, int, int, int, float]],
        final: Sequence[float],
        start: int = 0,
    ) -> Fst:
        """Makes one of arcs (source, target, input, output, weight)."""
        columns = list(zip(*arcs, strict=True))
        source, target, first, second = (np.array(c, dtype=np.int64) for c in columns[:4])
        return cls(
            start=start,
            final=np.array(final, dtype=np.float32),
            source=source,
            target=target,
            input=first,
            output=second,
            weight=np.array(columns[4], dtype=np.float32),
        )

    def write(self, path: Path) -> None:
        """Writes an OpenFst file of the types `vector` and `standard`.

        After the header follows for each state its final weight, the number of its arcs and the
        arcs, so that a state's record lies 12 bytes a state and 16 bytes an arc from the start.
        """
        order = np.argsort(self.source, kind="stable")
        counts = np.bincount(self.source, minlength=len(self.final))
        arcs = np.empty(len(order), dtype=_ARC)
        for name in ("input", "output", "weight", "target"):
            arcs[name] = getattr(self, name)[order]
        before = np.cumsum(counts) - counts
        at = _STATE_BYTES * np.arange(len(counts)) + _ARC.itemsize * before
        body = np.zeros((_STATE_BYTES * len(counts) + arcs.nbytes) // 4, dtype="<u4")
        words = at // 4
        body[words] = self.final.astype("<f4").view("<u4")
        body[words + 1] = counts
        place = 3 * (self.source[order] + 1) + 4 * np.arange(len(order))
        for column in range(4):
            body[place + column] = arcs.view("<u4").reshape(-1, 4)[:, column]
        header = struct.pack("<i", _MAGIC) + _text("vector") + _text("standard")
        sizes = (self.start, len(counts), len(order))
        header += struct.pack("<iiQqqq", _VERSION, 0, _EXPANDED_AND_MUTABLE, *sizes)
        path.write_bytes(header + body.tobytes())

    @classmethod
    def read(cls, path: Path) -> Fst:
        """Reads an OpenFst file of the types `vector` and `standard`."""
        data = path.read_bytes()
        at = 4 + len(_text("vector")) + len(_text("standard"))
        _, _, _, start, states, _ = struct.unpack_from("<iiQqqq", data, at)
        at += struct.calcsize("<iiQqqq")
        final = np.empty(states, dtype=np.float32)
        counts = np.empty(states, dtype=np.int64)
        pieces = []
        for state in range(states):
            final[state], counts[state] = struct.unpack_from("<fq", data, at)
            at += _STATE_BYTES
            pieces.append((at, at + _ARC.itemsize * int(counts[state])))
            at = pieces[-1][1]
        arcs = np.frombuffer(b"".join(data[a:b] for a, b in pieces), dtype=_ARC)
        return cls(
            start=int(start),
            final=final,
            source=np.repeat(np.arange(states), counts),
            target=arcs["target"].astype(np.int64),
            input=arcs["input"].astype(np.int64),
            output=arcs["output"].astype(np.int64),
            weight=arcs["weight"].astype(np.float32),
        )


def _text(word: str) -> bytes:
    return struct.pack("<i", len(word)) + word.encode()
