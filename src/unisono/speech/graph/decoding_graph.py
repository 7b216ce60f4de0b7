"""The decoding graph: states of phones, lexicon and language model in one transducer."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.topology import EXIT, Topology
from unisono.speech.corpus.lexicon import SILENCE, Lexicon
from unisono.speech.dependencies import import_package
from unisono.speech.graph.fst import Fst
from unisono.speech.graph.language_model import BEGIN, END, Gram, NgramModel

_NATURAL = math.log(10)

Row = tuple[int, tuple[int, ...]]
"""A phone and its states."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphInputs:
    """What a graph is made of.

    Attributes:
        lexicon: Words and their phones.
        language_model: The language model.
        topology: The phones and the moves inside them.
        tying: The states of phones between their neighbours.
        silence: The probability of silence between words.
    """

    lexicon: Lexicon
    language_model: NgramModel
    topology: Topology
    tying: StateTying
    silence: float

    @property
    def words(self) -> list[str]:
        """The words by their labels in the graph; label 0 is none."""
        return word_labels(self.lexicon)

    def build(self) -> Fst:
        """Builds the graph."""
        return build_graph(self)

    def fingerprint(self) -> str:
        """The sha256 of everything that changes the graph."""
        digest = hashlib.sha256()
        for part in (
            sorted(self.lexicon.entries.items()),
            sorted(self.lexicon.probabilities.items()),
            [sorted(table.items()) for table in self.language_model.tables],
            self.topology.phones,
            self.tying.to_json(),
            self.silence,
        ):
            digest.update(repr(part).encode())
        digest.update(self.topology.moves.tobytes())
        return digest.hexdigest()


class BuildsGraph(Protocol):
    """What a graph is made of, and how."""

    @property
    def words(self) -> list[str]:
        """The words by their labels in the graph; label 0 is none."""

    def fingerprint(self) -> str:
        """The sha256 of everything that changes the graph."""

    def build(self) -> Fst:
        """Builds the graph."""


def word_labels(lexicon: Lexicon) -> list[str]:
    """The words by their labels in a graph; label 0 is none."""
    return ["<eps>", *lexicon.words]


def cached_graph(graph_inputs: BuildsGraph, folder: Path) -> Fst:
    """Builds a graph, or reads it from a folder where it was built before."""
    path = folder / f"{graph_inputs.fingerprint()[:32]}.fst"
    if path.is_file():
        return Fst.read(path)
    fst = graph_inputs.build()
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fst.write(partial)
    os.replace(partial, path)
    return fst


def add_word_insertion_penalty(fst: Fst, penalty: float) -> Fst:
    """A copy of a graph with a cost added to every word."""
    weight = fst.weight + np.where(fst.output > 0, np.float32(penalty), np.float32(0))
    return replace(fst, weight=weight)


def build_graph(graph_inputs: GraphInputs) -> Fst:
    """Builds the graph: input label = state + 1, output label = index in `words`.

    Lexicon and language model are composed, determinised and minimised as transducers from
    phones to words; extra symbols keep homophones apart until that is done. Where states depend
    on neighbours, phones are replaced by phones in context, those with the same states are
    given one label, and the result is determinised and minimised again. Then each label's arcs
    are replaced by its states: an arc into a state reads a frame in that state. Arcs with the
    same label that end in the same state share their states.
    """
    phones = len(graph_inputs.topology.phones)
    with scratch_file() as scratch:
        both = phones_to_words(
            graph_inputs.lexicon,
            graph_inputs.language_model,
            graph_inputs.topology.phones,
            graph_inputs.silence,
            scratch,
        )
        rows: list[Row] = [(p, graph_inputs.tying.states_of(0, p, 0)) for p in range(phones)]
        if graph_inputs.tying.context_dependent:
            both, rows = _in_context(both, graph_inputs, scratch)
        both.write(str(scratch))
        return _expand(Fst.read(scratch), rows, graph_inputs.topology)


@contextmanager
def scratch_file() -> Iterator[Path]:
    """A file to pass transducers to OpenFst by."""
    with tempfile.TemporaryDirectory(prefix="unisono-graph-") as folder:
        yield Path(folder) / "machine.fst"


def phones_to_words(
    lexicon: Lexicon,
    language_model: NgramModel,
    phones: Sequence[str],
    silence: float | None,
    scratch: Path,
) -> Any:
    """Lexicon and language model composed, determinised and minimised: an OpenFst transducer.

    Phone p is label p + 1, from 0; labels beyond the phones keep homophones apart. With `silence`,
    its probability, silence may come before, between and after words.
    """
    kaldifst = import_package("kaldifst")
    left = load_fst(_lexicon(lexicon, phones, silence), scratch)
    right = load_fst(_grammar(lexicon, language_model), scratch)
    kaldifst.arcsort(left, "olabel")
    kaldifst.arcsort(right, "ilabel")
    both = kaldifst.StdVectorFst(kaldifst.compose(left, right))
    kaldifst.determinize_star(both, use_log=True)
    kaldifst.minimize_encoded(both)
    return both


def load_fst(fst: Fst, scratch: Path) -> Any:
    """A transducer as one of OpenFst."""
    fst.write(scratch)
    return import_package("kaldifst").StdVectorFst.read(str(scratch))


def _in_context(openfst: Any, graph_inputs: GraphInputs, scratch: Path) -> tuple[Any, list[Row]]:
    """From phones to phones in context; returns what each label of the result stands for."""
    kaldifst = import_package("kaldifst")
    phones = len(graph_inputs.topology.phones)
    openfst.write(str(scratch))
    used = np.unique(Fst.read(scratch).input)
    extra = [int(label) for label in used if label > phones]
    openfst, windows = kaldifst.compose_context(extra, 3, 1, openfst)
    openfst.write(str(scratch))
    fst = Fst.read(scratch)
    known: dict[Row, int] = {}
    labels = np.zeros(len(windows), dtype=np.int64)
    others = []
    for number, window in enumerate(windows):
        if len(window) == 3:
            # Beyond either end of an utterance lies silence, phone 0.
            before, phone, after = (max(label - 1, 0) for label in window)
            row = phone, graph_inputs.tying.states_of(before, phone, after)
            labels[number] = known.setdefault(row, len(known) + 1)
        elif window and window[0] != 0:
            others.append(number)
    labels[others] = len(known) + 1 + np.arange(len(others))
    openfst = load_fst(replace(fst, input=labels[fst.input]), scratch)
    # Not in the log semiring: it would add up ways that the decoder takes the best of.
    kaldifst.determinize_star(openfst)
    kaldifst.minimize_encoded(openfst)
    return openfst, list(known)


def _lexicon(lexicon: Lexicon, names: Sequence[str], silence: float | None) -> Fst:
    """Phones to words, any number of them, with optional silence around each or none.

    State 1 is between words, 0 the start, 2 and 3 before and after silence. Extra symbols on
    the phone side: one for the language model's back-off, one after optional silence, and
    further ones after pronunciations that several words share or that begin another one.
    """
    phones = {name: label for label, name in enumerate(names, start=1)}
    words = {word: label for label, word in enumerate(word_labels(lexicon))}
    back_off, quiet, extra = (len(phones) + k for k in (1, 2, 3))
    without = 0.0 if silence is None else -math.log1p(-silence)
    arcs = [(0, 1, 0, 0, without), (1, 1, back_off, len(words), 0.0)]
    if silence is not None:
        with_silence = -math.log(silence)
        arcs += [
            (0, 2, 0, 0, with_silence),
            (2, 3, phones[SILENCE], 0, 0.0),
            (3, 1, quiet, 0, 0.0),
        ]
    pronounced = [(p, w) for w, variants in lexicon.entries.items() for p in variants]
    times = Counter(pronunciation for pronunciation, _ in pronounced)
    begun = {p[:n] for p in times for n in range(1, len(p))}
    given: Counter[tuple[str, ...]] = Counter()
    states = 4
    for pronunciation, word in pronounced:
        labels = [phones[phone] for phone in pronunciation]
        if times[pronunciation] > 1 or pronunciation in begun:
            labels.append(extra + given[pronunciation])
            given[pronunciation] += 1
        at, output = 1, words[word]
        cost = -math.log(lexicon.probabilities.get((word, pronunciation), 1.0))
        for label in labels[:-1]:
            arcs.append((at, states, label, output, cost))
            at, output, cost = states, 0, 0.0
            states += 1
        arcs.append((at, 1, labels[-1], output, cost + without))
        if silence is not None:
            arcs.append((at, 2, labels[-1], output, cost + with_silence))
    return Fst.of(arcs, [0.0 if state == 1 else math.inf for state in range(states)])


def _grammar(lexicon: Lexicon, language_model: NgramModel) -> Fst:
    """The language model as an acceptor: a state a history, arcs to shorter ones for back-off."""
    words = {word: label for label, word in enumerate(word_labels(lexicon))}
    tables = language_model.restricted_to(lexicon.words).tables
    histories: dict[Gram, int] = {(): 0}
    for table in tables[1:]:
        for gram in table:
            histories.setdefault(gram[:-1], len(histories))

    def nearest(gram: Gram) -> int:
        while gram not in histories:
            gram = gram[1:]
        return histories[gram]

    final = [math.inf] * len(histories)
    arcs = []
    for table in tables:
        for gram, (value, _) in table.items():
            state = histories.get(gram[:-1])
            if state is None or gram[-1] == BEGIN:
                continue
            if gram[-1] == END:
                final[state] = -_NATURAL * value
            else:
                label = words[gram[-1]]
                arcs.append((state, nearest(gram), label, label, -_NATURAL * value))
    for gram, state in histories.items():
        if gram:
            backoff = tables[len(gram) - 1].get(gram, (0.0, 0.0))[1]
            arcs.append((state, nearest(gram[1:]), len(words), 0, -_NATURAL * backoff))
    return Fst.of(arcs, final, start=nearest((BEGIN,)))


def _expand(fst: Fst, rows: list[Row], topology: Topology) -> Fst:
    """Replaces each label's arcs by its HMM states, and removes the disambiguation symbols."""
    costs = -topology.scores()
    spoken = (fst.input > 0) & (fst.input <= len(rows))
    label = fst.input[spoken] - 1
    phones = np.array([phone for phone, _ in rows])
    entered = np.array([states[0] for _, states in rows])
    pairs, which = np.unique(np.stack([label, fst.target[spoken]]), axis=1, return_inverse=True)
    sizes = np.diff(topology.first)[phones[pairs[0]]]
    base = len(fst.final) + np.cumsum(sizes) - sizes
    silent = np.zeros(int((~spoken).sum()), dtype=np.int64)
    pieces = [
        (
            fst.source[spoken],
            base[which.ravel()],
            entered[label] + 1,
            fst.output[spoken],
            fst.weight[spoken],
        ),
        (
            fst.source[~spoken],
            fst.target[~spoken],
            silent,
            fst.output[~spoken],
            fst.weight[~spoken],
        ),
    ]
    order = np.argsort(pairs[0], kind="stable")
    ends = np.searchsorted(pairs[0][order], np.arange(len(rows) + 1))
    for number, (phone, states) in enumerate(rows):
        mine = order[ends[number] : ends[number + 1]]
        first, after = base[mine], pairs[1, mine]
        none = np.zeros(len(mine), dtype=np.int64)
        for i, j in np.argwhere(topology.moves[phone] > 0).tolist():
            read = none if j == EXIT else none + states[j] + 1
            target = after if j == EXIT else first + j
            weight = np.full(len(mine), costs[phone, i, j], dtype=np.float32)
            pieces.append((first + i, target, read, none, weight))
    source, target, read, written, weight = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )
    inner = np.full(int(sizes.sum()), np.inf, dtype=np.float32)
    return Fst(
        start=fst.start,
        final=np.concatenate([fst.final, inner]),
        source=source,
        target=target,
        input=read,
        output=written,
        weight=weight.astype(np.float32),
    )
