"""Beam search in a decoding graph, by several processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.speech.decoding.lattice import Lattice
from unisono.speech.dependencies import import_package
from unisono.speech.graph.decoding_graph import add_word_insertion_penalty
from unisono.speech.graph.fst import Fst
from unisono.speech.worker_pool import WorkerPool

Frames = NDArray[np.float32]
Words = tuple[str, ...]

BEAM = 15.0
"""The beam of the search for the best path."""
MAX_ACTIVE = 3000
"""The states that this search keeps in a frame, at most."""
_LATTICE_SEARCH_BEAM = 11.0
"""The beam of the search for lattices, at an acoustic scale of 0.1."""
_LATTICE_BEAM = 6.0
"""Paths that cost this much more than the best one are kept in lattices."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    """An utterance to search; `lattice`: where its lattice goes, None: the best path is wanted."""

    graph: Path
    loglikes: Frames
    scale: float
    lattice: Path | None = None


@dataclass(frozen=True, kw_only=True)
class _Rescoring:
    lattice: Path
    scale: float
    penalty: float


def _no_graph() -> dict[Path, Any]:
    return {}


def _search(graphs: dict[Path, Any], task: _Task) -> list[int]:
    """The labels of the best path; if none reaches a final state, of the best partial one."""
    decoder, kaldifst = import_package("kaldi_decoder"), import_package("kaldifst")
    if task.graph not in graphs:
        graphs.clear()  # one at a time: a graph of a large vocabulary takes much memory
        graphs[task.graph] = kaldifst.StdVectorFst.read(str(task.graph))
    scores = decoder.DecodableCtc(np.ascontiguousarray(task.loglikes * np.float32(task.scale)))
    if task.lattice is not None:
        config = decoder.LatticeSimpleDecoderConfig(
            beam=_lattice_search_beam(task.scale), lattice_beam=_LATTICE_BEAM
        )
        search = decoder.LatticeSimpleDecoder(graphs[task.graph], config)
        search.decode(scores)
        search.get_raw_lattice()[1].write(str(task.lattice))
        Lattice.read_openfst(task.lattice, task.scale).save(task.lattice)
        return []
    options = decoder.FasterDecoderOptions(beam=BEAM, max_active=MAX_ACTIVE)
    search = decoder.FasterDecoder(graphs[task.graph], options)
    search.decode(scores)
    found, best = search.get_best_path()
    return list(kaldifst.get_linear_symbol_sequence(best)[2]) if found else []


def _lattice_search_beam(scale: float) -> float:
    """The beam of the search for lattices.

    kaldi-decoder's search for lattices has no limit on active states. The smaller the scale, the
    closer the scores, and the more states a beam keeps: so it narrows with the scale.
    """
    return float(min(BEAM, _LATTICE_SEARCH_BEAM * np.sqrt(scale / 0.1)))


def _rescore(_: dict[Path, Any], task: _Rescoring) -> list[int]:
    scratch = task.lattice.with_suffix(".fst")
    return Lattice.load(task.lattice).best_labels(task.scale, task.penalty, scratch)


class Decoder:
    """Decodes with one graph, to words or to lattices."""

    def __init__(self, graph: Fst, words: Sequence[str], processes: int) -> None:
        """Starts the processes.

        Args:
            graph: The decoding graph.
            words: The words by their labels in it.
            processes: How many search at a time.
        """
        self._graph = graph
        self._words = words
        self.processes = processes
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

    def decode(self, loglikes: Iterable[Frames], scale: float, penalty: float) -> Iterator[Words]:
        """Yields the words of each utterance.

        Args:
            loglikes: Frames x states each.
            scale: The acoustic scale.
            penalty: The word insertion penalty.
        """
        graph = self._graph_file(penalty)
        tasks = (_Task(graph=graph, loglikes=each, scale=scale) for each in loglikes)
        return map(self._to_words, self._pool.map(_search, tasks))

    def make_lattices(self, loglikes: Sequence[Frames], scale: float) -> Iterator[Path]:
        """Yields the file of each utterance's lattice; earlier ones are overwritten."""
        graph = self._graph_file(0.0)
        files = [Path(self._folder.name) / f"{number}.npz" for number in range(len(loglikes))]
        tasks = (
            _Task(graph=graph, loglikes=each, scale=scale, lattice=file)
            for each, file in zip(loglikes, files, strict=True)
        )
        for file, _ in zip(files, self._pool.map(_search, tasks), strict=True):
            yield file

    def rescore(self, lattices: Iterable[Path], scale: float, penalty: float) -> list[Words]:
        """The words of each lattice's best path.

        Args:
            lattices: Files that `make_lattices` wrote.
            scale: The acoustic scale.
            penalty: The word insertion penalty.
        """
        tasks = (_Rescoring(lattice=file, scale=scale, penalty=penalty) for file in lattices)
        return [self._to_words(labels) for labels in self._pool.map(_rescore, tasks, chunk=4)]

    def _graph_file(self, penalty: float) -> Path:
        path = Path(self._folder.name) / f"{penalty:.6f}.fst"
        if not path.exists():
            add_word_insertion_penalty(self._graph, penalty).write(path)
        return path

    def _to_words(self, labels: Sequence[int]) -> Words:
        return tuple(self._words[label] for label in labels)
