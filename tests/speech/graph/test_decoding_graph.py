"""The graph: every sentence costs what lexicon, language model and topology say it does."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from unisono.speech.alignment.decision_tree import Question, Side, StateTying
from unisono.speech.alignment.topology import Topology
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.graph.decoding_graph import (
    GraphInputs,
    add_word_insertion_penalty,
    build_graph,
    cached_graph,
)
from unisono.speech.graph.fst import Fst
from unisono.speech.graph.language_model import (
    BEGIN,
    END,
    Gram,
    NgramModel,
    estimate_ngrams,
)

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

LEXICON = Lexicon(
    entries={"a": [("A",)], "ab": [("A", "B"), ("B",)], "oh": [("A",)], "sil": [("SIL",)]}
)
TEXT = [["a", "ab"], ["ab"], ["oh", "a", "ab"], ["ab", "a"], ["sil"]]
SILENCE = 0.3
TOPOLOGY = Topology.initial(LEXICON.phones)


A, B = 1, 2
ASKING = StateTying(
    trees=(
        tuple(range(5)),
        (
            Question(Side.LEFT, frozenset([0]), 5, 6),
            7,
            Question(Side.RIGHT, frozenset([A, 0]), 8, 9),
        ),
        (
            10,
            Question(Side.LEFT, frozenset([A]), 11, Question(Side.RIGHT, frozenset([B]), 12, 13)),
            14,
        ),
    ),
    states=15,
)


def graph_inputs(order: int, tying: StateTying | None = None) -> GraphInputs:
    return GraphInputs(
        lexicon=LEXICON,
        language_model=estimate_ngrams(TEXT, LEXICON.words, order),
        topology=TOPOLOGY,
        tying=tying or StateTying.monophone(TOPOLOGY),
        silence=SILENCE,
    )


def best_log10(language_model: NgramModel, words: Gram, history: Gram) -> float:
    """The best way to score words: at each one may back off even where the n-gram is known."""
    if not words:
        return 0.0
    after, weight, best = (
        history[len(history) - min(len(history), language_model.order - 1) :],
        0.0,
        [],
    )
    while True:
        gram = (*after, words[0])
        if gram in language_model.tables[len(after)]:
            value = language_model.tables[len(after)][gram][0]
            best.append(weight + value + best_log10(language_model, words[1:], gram))
        if not after:
            return max(best)
        weight += language_model.tables[len(after) - 1].get(after, (0.0, 0.0))[1]
        after = after[1:]


def cheapest(fst: Fst, states: list[int], words: list[int]) -> float:
    """The cost of the best path that reads these states and writes these words."""
    infinity = math.inf
    best = {(fst.start, 0): 0.0}
    arcs: dict[int, list[int]] = {}
    for arc, source in enumerate(fst.source):
        arcs.setdefault(int(source), []).append(arc)
    for step in range(len(states) + 1):
        queue = list(best)
        while queue:
            place = queue.pop()
            for arc in arcs.get(place[0], []):
                if fst.input[arc] == 0:
                    _relax(fst, arc, place, words, best, best, queue)
        if step == len(states):
            break
        after: dict[tuple[int, int], float] = {}
        for place in best:
            for arc in arcs.get(place[0], []):
                if fst.input[arc] == states[step] + 1:
                    _relax(fst, arc, place, words, best, after, [])
        best = after
    return min(
        (c + float(fst.final[s]) for (s, n), c in best.items() if n == len(words)),
        default=infinity,
    )


def _relax(
    fst: Fst,
    arc: int,
    place: tuple[int, int],
    words: list[int],
    before: dict[tuple[int, int], float],
    after: dict[tuple[int, int], float],
    queue: list[tuple[int, int]],
) -> None:
    written, label = place[1], int(fst.output[arc])
    if label:
        if written >= len(words) or words[written] != label:
            return
        written += 1
    target = int(fst.target[arc]), written
    cost = before[place] + float(fst.weight[arc])
    if cost < after.get(target, math.inf) - 1e-6:
        after[target] = cost
        queue.append(target)


@pytest.mark.parametrize("tying", [None, ASKING])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_costs_are_the_sum_of_the_parts(order: int, tying: StateTying | None) -> None:
    parts = graph_inputs(order, tying)
    fst = build_graph(parts)
    labels = {word: label for label, word in enumerate(parts.words)}
    scores = parts.topology.scores()
    names = {name: number for number, name in enumerate(parts.topology.phones)}
    sentences = [["a"], ["oh"], ["ab", "a"], ["oh", "ab", "ab"], ["sil", "a"]]
    for sentence in sentences:
        grammar = best_log10(parts.language_model, (*sentence, END), (BEGIN,))
        for variant in itertools.product(*[LEXICON.entries[word] for word in sentence]):
            phones = [names[phone] for said in variant for phone in said]
            rows = {0: [0, 1, 4], 1: [0, 1, 1, 2], 2: [0, 0, 1, 2]}
            around = zip([0, *phones], phones, [*phones[1:], 0], strict=False)
            states = [parts.tying.states_of(a, p, b)[s] for a, p, b in around for s in rows[p]]
            moves = sum(
                scores[p, i, j] for p in phones for i, j in itertools.pairwise([*rows[p], 5])
            )
            wanted = -grammar * math.log(10) - moves - (len(sentence) + 1) * math.log(1 - SILENCE)
            cost = cheapest(fst, states, [labels[word] for word in sentence])
            assert cost == pytest.approx(wanted, abs=0.01)


def test_silence_may_be_anywhere_and_words_have_a_penalty() -> None:
    parts = graph_inputs(2)
    fst = build_graph(parts)
    labels = {word: label for label, word in enumerate(parts.words)}
    first = parts.topology.first
    a = [int(first[1]) + s for s in (0, 1, 2)]
    quiet = [0, 2, 3, 1, 4]
    words = [labels["a"], labels["a"]]
    plain = cheapest(fst, a + a, words)
    for states in (quiet + a + a, a + quiet + a, a + a + quiet, quiet + a + quiet + a + quiet):
        assert math.isfinite(cheapest(fst, states, words))
    assert cheapest(fst, a + quiet + quiet + a, words) == math.inf
    assert cheapest(add_word_insertion_penalty(fst, 1.5), a + a, words) == pytest.approx(
        plain + 3, abs=1e-4
    )


def test_a_graph_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_graph(graph_inputs(2), tmp_path)
    monkeypatch.setattr(
        "unisono.speech.graph.decoding_graph.build_graph", lambda _: pytest.fail("built again")
    )
    again = cached_graph(graph_inputs(2), tmp_path)
    np.testing.assert_array_equal(np.sort(again.weight), np.sort(first.weight))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_rare_pronunciation_costs_more_in_the_graph(tmp_path: Path) -> None:
    file = tmp_path / "lexiconp.txt"
    file.write_text("a 1.0 X\na 0.125 Y\n")

    def cheapest(phone: str) -> float:
        """The cost of the way from the start into a phone's first state."""
        lexicon = Lexicon.read(file)
        topology = Topology.initial(lexicon.phones)
        machine = build_graph(
            GraphInputs(
                lexicon=lexicon,
                language_model=estimate_ngrams([("a",)], ["a"], 1),
                topology=topology,
                tying=StateTying.monophone(topology),
                silence=0.5,
            )
        )
        reached = {machine.start: 0.0}
        for _ in range(len(machine.final)):
            for source, target, label, weight in zip(
                machine.source.tolist(),
                machine.target.tolist(),
                machine.input.tolist(),
                machine.weight.tolist(),
                strict=True,
            ):
                if label == 0 and source in reached:
                    cost = reached[source] + weight
                    reached[target] = min(cost, reached.get(target, np.inf))
        wanted = int(topology.first[lexicon.phones.index(phone)]) + 1
        arcs = zip(machine.source.tolist(), machine.input, machine.weight, strict=True)
        return min(
            reached[source] + float(weight)
            for source, label, weight in arcs
            if label == wanted and source in reached
        )

    assert cheapest("Y") - cheapest("X") == pytest.approx(np.log(8), abs=1e-3)
