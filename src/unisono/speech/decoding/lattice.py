"""Lattices: decoded once, rescored with any acoustic scale and word insertion penalty.

kaldi-decoder makes raw lattices, with graph and acoustic costs apart. It does not determinise them,
and nothing in kaldifst adds a word insertion penalty, so the arcs are held as arrays: a rescored
lattice is a transducer whose weights are a weighted sum of them, and OpenFst finds its best path.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unisono.speech.dependencies import import_package
from unisono.speech.graph.fst import Floats, Fst, Ints

_ARC = np.dtype(
    [("input", "<i4"), ("output", "<i4"), ("graph", "<f4"), ("acoustic", "<f4"), ("target", "<i4")]
)
_HEADER = "<iiQqqq"


@dataclass(frozen=True, kw_only=True, eq=False)
class Lattice:
    """A raw lattice.

    Attributes:
        start: The state that it starts in.
        final_graph: The graph cost of ending in each state; infinity: one cannot.
        final_acoustic: The acoustic cost of ending there.
        source: The state that each arc leaves.
        target: The state that it leads to.
        output: Its word; 0: none.
        graph: Its graph cost.
        acoustic: Its acoustic cost, not scaled.
    """

    start: int
    final_graph: Floats
    final_acoustic: Floats
    source: Ints
    target: Ints
    output: Ints
    graph: Floats
    acoustic: Floats

    @classmethod
    def read_openfst(cls, path: Path, scale: float) -> Lattice:
        """Reads what `kaldifst.Lattice.write` wrote.

        Args:
            path: The file.
            scale: The acoustic scale that the lattice was made with; it is divided out.
        """
        data = path.read_bytes()
        at = 4
        for _ in ("type of the FST", "type of its arcs"):
            at += 4 + struct.unpack_from("<i", data, at)[0]
        *_, start, states, _ = struct.unpack_from(_HEADER, data, at)
        at += struct.calcsize(_HEADER)
        final = np.empty((states, 2), dtype=np.float32)
        counts = np.empty(states, dtype=np.int64)
        pieces = []
        for state in range(states):
            *final[state], counts[state] = struct.unpack_from("<ffq", data, at)
            end = at + 16 + _ARC.itemsize * int(counts[state])
            pieces.append(data[at + 16 : end])
            at = end
        arcs = np.frombuffer(b"".join(pieces), dtype=_ARC)
        return cls(
            start=start,
            final_graph=final[:, 0],
            final_acoustic=np.where(np.isfinite(final[:, 1]), final[:, 1], 0) / np.float32(scale),
            source=np.repeat(np.arange(states), counts),
            target=arcs["target"].astype(np.int64),
            output=arcs["output"].astype(np.int64),
            graph=arcs["graph"].astype(np.float32),
            acoustic=arcs["acoustic"] / np.float32(scale),
        )

    def save(self, path: Path) -> None:
        """Writes the arrays to a .npz file."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Lattice:
        """Reads what `save` wrote."""
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        return cls(**{**arrays, "start": int(arrays["start"])})

    def best_labels(self, scale: float, penalty: float, scratch: Path) -> list[int]:
        """The words of the best path.

        Args:
            scale: The acoustic scale.
            penalty: The word insertion penalty.
            scratch: A file that is overwritten.
        """
        if not len(self.final_graph):
            return []
        acoustic = np.float32(scale)
        word = np.where(self.output > 0, np.float32(penalty), np.float32(0))
        Fst(
            start=self.start,
            final=self.final_graph + acoustic * self.final_acoustic,
            source=self.source,
            target=self.target,
            input=self.output,
            output=self.output,
            weight=self.graph + acoustic * self.acoustic + word,
        ).write(scratch)
        kaldifst = import_package("kaldifst")
        best = kaldifst.shortest_path(kaldifst.StdVectorFst.read(str(scratch)))
        return list(kaldifst.get_linear_symbol_sequence(best)[2])
