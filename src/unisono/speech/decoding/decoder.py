"""Beam search in a decoding graph, by several processes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
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

BEAM = 15.0
"""The beam of the search."""
MAX_ACTIVE = 3000
"""The states that it keeps in a frame, at most."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """The best path of an utterance.

    Attributes:
        words: Its words.
        graph_cost: Its cost in the graph, without word insertion penalties; infinity where the
            search found no path.
        acoustic_cost: Its negative log-likelihood, not scaled.
    """

    words: Words
    graph_cost: float = 0.0
    acoustic_cost: float = 0.0

    def cost(self, scale: float, penalty: float) -> float:
        """What the path costs with an acoustic scale and a word insertion penalty."""
        return self.graph_cost + scale * self.acoustic_cost + penalty * len(self.words)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    graph: Path
    loglikes: Frames
    scale: float


@dataclass(frozen=True, kw_only=True)
class _Path:
    labels: tuple[int, ...]
    graph_cost: float
    scaled_acoustic_cost: float


def _no_graph() -> dict[Path, Any]:
    return {}


def _search(graphs: dict[Path, Any], task: _Task) -> _Path:
    """The best path; if none reaches a final state, the best partial one."""
    decoder, kaldifst = import_package("kaldi_decoder"), import_package("kaldifst")
    if task.graph not in graphs:
        graphs.clear()  # one at a time: a graph of a large vocabulary takes much memory
        graphs[task.graph] = kaldifst.StdVectorFst.read(str(task.graph))
    scores = decoder.DecodableCtc(np.ascontiguousarray(task.loglikes * np.float32(task.scale)))
    options = decoder.FasterDecoderOptions(beam=BEAM, max_active=MAX_ACTIVE)
    search = decoder.FasterDecoder(graphs[task.graph], options)
    search.decode(scores)
    found, best = search.get_best_path()
    if not found:
        return _Path(labels=(), graph_cost=math.inf, scaled_acoustic_cost=0.0)
    _, _, labels, weight = kaldifst.get_linear_symbol_sequence(best)
    return _Path(labels=tuple(labels), graph_cost=weight.value1, scaled_acoustic_cost=weight.value2)


class Decoder:
    """Decodes with one graph."""

    def __init__(self, graph: Fst, words: Sequence[str], processes: int) -> None:
        """Starts the processes.

        Args:
            graph: The decoding graph.
            words: The words by their labels in it.
            processes: How many search at a time.
        """
        self._graph = graph
        self._words = words
        self._folder = tempfile.TemporaryDirectory(prefix="unisono-decode-")
        self._pool = WorkerPool(processes, _no_graph)

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._folder.cleanup()

    @property
    def worker_cpu_s(self) -> float:
        """CPU seconds of finished searches in processes other than this one."""
        return self._pool.worker_cpu_s

    def decode(
        self, loglikes: Iterable[Frames], scale: float, penalty: float
    ) -> Iterator[Hypothesis]:
        """Yields the best path of each utterance.

        Args:
            loglikes: Frames x states each.
            scale: The acoustic scale.
            penalty: The word insertion penalty.
        """
        graph = self._graph_file(penalty)
        tasks = (_Task(graph=graph, loglikes=each, scale=scale) for each in loglikes)
        for path in self._pool.map(_search, tasks):
            words = tuple(self._words[label] for label in path.labels)
            yield Hypothesis(
                words=words,
                graph_cost=path.graph_cost - penalty * len(words),
                acoustic_cost=path.scaled_acoustic_cost / scale,
            )

    def _graph_file(self, penalty: float) -> Path:
        path = Path(self._folder.name) / f"{penalty:.6f}.fst"
        if not path.exists():
            add_word_insertion_penalty(self._graph, penalty).write(path)
        return path
