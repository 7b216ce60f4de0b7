"""The decoding graph: states of phones, lexicon and language model in one transducer."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unisono.speech.fst import Machine
from unisono.speech.lexicon import SILENCE, Lexicon
from unisono.speech.ngram import BEGIN, END, Gram, Ngrams
from unisono.speech.packages import package
from unisono.speech.topology import Topology

_LEAVE = 5
_NATURAL = math.log(10)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ingredients:
    """What a graph is made of.

    Attributes:
        lexicon: Words and their phones.
        language: The language model.
        topology: The states of the phones.
        silence: The probability of silence between words.
    """

    lexicon: Lexicon
    language: Ngrams
    topology: Topology
    silence: float

    @property
    def words(self) -> list[str]:
        """The words by their labels in the graph; label 0 is none."""
        return ["<eps>", *self.lexicon.words]

    def fingerprint(self) -> str:
        """The sha256 of everything that changes the graph."""
        digest = hashlib.sha256()
        for part in (
            sorted(self.lexicon.entries.items()),
            [sorted(table.items()) for table in self.language.tables],
            self.topology.phones,
            self.silence,
        ):
            digest.update(repr(part).encode())
        digest.update(self.topology.moves.tobytes())
        return digest.hexdigest()


def cached_graph(ingredients: Ingredients, folder: Path) -> Machine:
    """Builds a graph, or reads it from a folder where it was built before."""
    path = folder / f"{ingredients.fingerprint()[:32]}.fst"
    if path.is_file():
        return Machine.read(path)
    machine = build_graph(ingredients)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    machine.write(partial)
    os.replace(partial, path)
    return machine


def penalised(machine: Machine, penalty: float) -> Machine:
    """The same with a price on every word."""
    dearer = machine.weight + np.where(machine.output > 0, np.float32(penalty), np.float32(0))
    return replace(machine, weight=dearer)


def build_graph(ingredients: Ingredients) -> Machine:
    """Builds the graph: input label = state + 1, output label = place in `words`.

    Lexicon and language model are composed, determinised and minimised as transducers from
    phones to words; extra symbols keep homophones apart until that is done. Then each phone's
    arcs are replaced by its states: an arc into state j of a phone reads a frame in state j.
    Arcs with the same phone that end in the same place share their states.
    """
    kaldifst = package("kaldifst")
    with tempfile.TemporaryDirectory(prefix="unisono-graph-") as folder:
        scratch = Path(folder) / "machine.fst"
        lexicon, grammar = _lexicon(ingredients), _grammar(ingredients)
        lexicon.write(scratch)
        left = kaldifst.StdVectorFst.read(str(scratch))
        grammar.write(scratch)
        right = kaldifst.StdVectorFst.read(str(scratch))
        kaldifst.arcsort(left, "olabel")
        kaldifst.arcsort(right, "ilabel")
        both = kaldifst.StdVectorFst(kaldifst.compose(left, right))
        kaldifst.determinize_star(both, use_log=True)
        kaldifst.minimize_encoded(both)
        both.write(str(scratch))
        return _expand(Machine.read(scratch), ingredients.topology)


def _lexicon(ingredients: Ingredients) -> Machine:
    """Phones to words, any number of them, with optional silence around each.

    State 1 is between words, 0 the start, 2 and 3 before and after silence. Extra symbols on
    the phone side: one for the language model's back-off, one after optional silence, and
    further ones after pronunciations that several words share or that begin another one.
    """
    phones = {name: label for label, name in enumerate(ingredients.topology.phones, start=1)}
    words = {word: label for label, word in enumerate(ingredients.words)}
    back_off, quiet, extra = (len(phones) + k for k in (1, 2, 3))
    with_silence = -math.log(ingredients.silence)
    without = -math.log1p(-ingredients.silence)
    arcs = [
        (0, 1, 0, 0, without),
        (0, 2, 0, 0, with_silence),
        (2, 3, phones[SILENCE], 0, 0.0),
        (3, 1, quiet, 0, 0.0),
        (1, 1, back_off, len(words), 0.0),
    ]
    said = [(p, w) for w, variants in ingredients.lexicon.entries.items() for p in variants]
    times = Counter(pronunciation for pronunciation, _ in said)
    begun = {p[:n] for p in times for n in range(1, len(p))}
    given: Counter[tuple[str, ...]] = Counter()
    states = 4
    for pronunciation, word in said:
        labels = [phones[phone] for phone in pronunciation]
        if times[pronunciation] > 1 or pronunciation in begun:
            labels.append(extra + given[pronunciation])
            given[pronunciation] += 1
        at, output = 1, words[word]
        for label in labels[:-1]:
            arcs.append((at, states, label, output, 0.0))
            at, output = states, 0
            states += 1
        arcs.append((at, 1, labels[-1], output, without))
        arcs.append((at, 2, labels[-1], output, with_silence))
    return Machine.of(arcs, [0.0 if state == 1 else math.inf for state in range(states)])


def _grammar(ingredients: Ingredients) -> Machine:
    """The language model as an acceptor: a state a history, arcs to shorter ones for back-off."""
    words = {word: label for label, word in enumerate(ingredients.words)}
    tables = ingredients.language.within(ingredients.lexicon.words).tables
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
    return Machine.of(arcs, final, start=nearest((BEGIN,)))


def _expand(machine: Machine, topology: Topology) -> Machine:
    """Puts the states of each phone in the place of its arcs, and takes extra symbols away."""
    costs = -topology.scores()
    spoken = (machine.input > 0) & (machine.input <= len(topology.phones))
    phone = machine.input - 1
    pairs, which = np.unique(
        np.stack([phone[spoken], machine.target[spoken]]), axis=1, return_inverse=True
    )
    sizes = np.diff(topology.first)[pairs[0]]
    base = len(machine.final) + np.cumsum(sizes) - sizes
    pieces = [
        (
            machine.source[spoken],
            base[which.ravel()],
            topology.first[phone[spoken]] + 1,
            machine.output[spoken],
            machine.weight[spoken],
        ),
        (
            machine.source[~spoken],
            machine.target[~spoken],
            np.zeros(int((~spoken).sum()), dtype=np.int64),
            machine.output[~spoken],
            machine.weight[~spoken],
        ),
    ]
    for number in range(len(topology.phones)):
        mine = pairs[0] == number
        first, after = base[mine], pairs[1, mine]
        silent = np.zeros(len(first), dtype=np.int64)
        for i, j in np.argwhere(topology.moves[number] > 0):
            label = 0 if j == _LEAVE else topology.first[number] + j + 1
            target = after if j == _LEAVE else first + j
            weight = np.full(len(first), costs[number, i, j])
            pieces.append((first + i, target, silent + label, silent, weight))
    source, target, read, written, weight = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )
    inner = np.full(int(sizes.sum()), np.inf, dtype=np.float32)
    return Machine(
        start=machine.start,
        final=np.concatenate([machine.final, inner]),
        source=source,
        target=target,
        input=read,
        output=written,
        weight=weight.astype(np.float32),
    )
