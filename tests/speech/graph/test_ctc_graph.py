"""The graph of CTC: exactly the paths whose phones are a sentence, at the sentence's cost."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest

from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.graph.ctc_graph import CtcGraphInputs, ctc_topology
from unisono.speech.graph.fst import Fst
from unisono.speech.graph.language_model import NgramModel, estimate_ngrams

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

# Equal phones inside a word and between words, homophones, and a word that begins another one.
LEXICON = Lexicon(
    entries={"a": [("A",)], "aa": [("A", "A")], "ab": [("A", "B"), ("B",)], "oh": [("A",)]},
    probabilities={("ab", ("B",)): 0.25},
)
TEXT = [["a", "ab"], ["ab", "aa"], ["oh", "a"], ["aa"]]
PHONES = ("SIL", "A", "B")
A, B = 2, 3  # outputs of the network; 0 is the blank, 1 silence
Sentences = dict[tuple[str, ...], float]


def read(fst: Fst, path: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The cheapest way of each output sequence with which a graph reads a path."""
    arcs = defaultdict(list)
    for arc, source in enumerate(fst.source.tolist()):
        arcs[source].append(arc)
    best: dict[tuple[int, tuple[int, ...]], float] = {(fst.start, ()): 0.0}
    for label in (None, *path):
        queue = list(best.items())
        after: dict[tuple[int, tuple[int, ...]], float] = {} if label is not None else dict(best)
        if label is not None:
            for (state, words), cost in queue:
                for arc in arcs[state]:
                    if fst.input[arc] == label + 1:
                        _relax(fst, arc, words, cost, after)
        queue = list(after.items())
        while queue:
            (state, words), cost = queue.pop()
            for arc in arcs[state]:
                if fst.input[arc] == 0:
                    reached = _relax(fst, arc, words, cost, after)
                    if reached is not None:
                        queue.append((reached, after[reached]))
        best = after
    ended: dict[tuple[int, ...], float] = {}
    for (state, words), cost in best.items():
        whole = cost + float(fst.final[state])
        if whole < ended.get(words, math.inf):
            ended[words] = whole
    return ended


def _relax(
    fst: Fst,
    arc: int,
    words: tuple[int, ...],
    cost: float,
    into: dict[tuple[int, tuple[int, ...]], float],
) -> tuple[int, tuple[int, ...]] | None:
    label = int(fst.output[arc])
    place = int(fst.target[arc]), (*words, label) if label else words
    reached = cost + float(fst.weight[arc])
    if reached >= into.get(place, math.inf) - 1e-9:
        return None
    into[place] = reached
    return place


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(unit for unit, _ in itertools.groupby(path) if unit)


def sentences(model: NgramModel, phones: tuple[int, ...]) -> Sentences:
    """All word sequences that are said with these phones, and what each costs."""
    numbers = {name: number for number, name in enumerate(PHONES, start=1)}
    found: Sentences = {}

    def extend(words: tuple[str, ...], left: tuple[int, ...], cost: float) -> None:
        if not left:
            found[words] = min(cost, found.get(words, math.inf))
        for word, variants in LEXICON.entries.items():
            for variant in variants:
                said = tuple(numbers[phone] for phone in variant)
                if left[: len(said)] == said:
                    price = -math.log(LEXICON.probabilities.get((word, variant), 1.0))
                    extend((*words, word), left[len(said) :], cost + price)

    extend((), phones, 0.0)
    unigrams = {gram[0]: value for gram, (value, _) in model.tables[0].items()}
    return {
        words: cost - math.log(10) * sum(unigrams[word] for word in (*words, "</s>"))
        for words, cost in found.items()
    }


def test_the_topology_reads_every_path_as_its_phones() -> None:
    fst = ctc_topology(3)
    for length in range(6):
        for path in itertools.product(range(4), repeat=length):
            assert read(fst, path) == {collapsed(path): 0.0}


def test_the_graph_accepts_the_paths_of_its_sentences_and_no_others() -> None:
    model = estimate_ngrams(TEXT, LEXICON.words, 1)
    inputs = CtcGraphInputs(lexicon=LEXICON, language_model=model, phones=PHONES)
    fst = inputs.build()
    for length in range(6):
        for path in itertools.product((0, 1, A, B), repeat=length):
            expected = sentences(model, collapsed(path))
            got = {
                tuple(inputs.words[w] for w in words): cost
                for words, cost in read(fst, path).items()
            }
            finite = {words: cost for words, cost in got.items() if cost < math.inf}
            # OpenFst rounds the cost of each arc to a multiple of 1/1024 where it minimizes.
            assert finite == pytest.approx(expected, abs=6 / 1024), path


def test_graphs_of_longer_histories_accept_the_same_words() -> None:
    model = estimate_ngrams(TEXT, LEXICON.words, 2)
    inputs = CtcGraphInputs(lexicon=LEXICON, language_model=model, phones=PHONES)
    fst = inputs.build()
    plain = estimate_ngrams(TEXT, LEXICON.words, 1)
    for path in itertools.product((0, A, B), repeat=5):
        found = {w for w, cost in read(fst, path).items() if cost < math.inf}
        expected = sentences(plain, collapsed(path))
        assert {tuple(inputs.words[w] for w in words) for words in found} == set(expected)


def test_whatever_changes_the_graph_changes_its_fingerprint() -> None:
    model = estimate_ngrams(TEXT, LEXICON.words, 1)
    inputs = CtcGraphInputs(lexicon=LEXICON, language_model=model, phones=PHONES)
    other = CtcGraphInputs(lexicon=LEXICON, language_model=model, phones=("SIL", "B", "A"))
    again = CtcGraphInputs(lexicon=LEXICON, language_model=model, phones=PHONES)
    assert inputs.fingerprint() == again.fingerprint() != other.fingerprint()
