"""The words that fit log-likelihoods best, found in a graph by several processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.speech.dependencies import import_package
from unisono.speech.graph.decoding_graph import add_word_insertion_penalty
from unisono.speech.graph.fst import Fst
from unisono.speech.worker_pool import WorkerPool

Frames = NDArray[np.float32]
Words = tuple[str, ...]

_BEAM = 15.0
_MOST_ACTIVE = 7000


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    graph: Path
    scores: Frames


def _nothing_read() -> dict[Path, Any]:
    return {}


def _search(graphs: dict[Path, Any], task: _Task) -> list[int]:
    """The labels of the best path; without a way to an end, of the best one that got furthest."""
    decoder, kaldifst = import_package("kaldi_decoder"), import_package("kaldifst")
    if task.graph not in graphs:
        graphs.clear()  # one at a time: a graph of a large vocabulary takes much memory
        graphs[task.graph] = kaldifst.StdVectorFst.read(str(task.graph))
    options = decoder.FasterDecoderOptions(beam=_BEAM, max_active=_MOST_ACTIVE)
    search = decoder.FasterDecoder(graphs[task.graph], options)
    search.decode(decoder.DecodableCtc(task.scores))
    found, best = search.get_best_path()
    return list(kaldifst.get_linear_symbol_sequence(best)[2]) if found else []


class Decoder:
    """Decodes with one graph and any acoustic scale and word insertion penalty."""

    def __init__(self, graph: Fst, words: Sequence[str], processes: int) -> None:
        """Starts the processes.

        Args:
            graph: The graph.
            words: The words by their labels in it.
            processes: How many search at a time.
        """
        self._graph = graph
        self._words = words
        self._folder = tempfile.TemporaryDirectory(prefix="unisono-decode-")
        self._pool = WorkerPool(processes, _nothing_read)

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._folder.cleanup()

    def decode(self, loglikes: Iterable[Frames], scale: float, penalty: float) -> list[Words]:
        """The words of each utterance.

        Args:
            loglikes: Frames x states each.
            scale: What they are multiplied by.
            penalty: The word insertion penalty, added to the graph's costs.
        """
        path = Path(self._folder.name) / f"{penalty:.6f}.fst"
        if not path.exists():
            add_word_insertion_penalty(self._graph, penalty).write(path)
        tasks = (
            _Task(graph=path, scores=np.ascontiguousarray(each * np.float32(scale)))
            for each in loglikes
        )
        found = self._pool.map(_search, tasks)
        return [tuple(self._words[label] for label in labels) for labels in found]
