"""Trees find the neighbours that matter, and paths and graphs keep to them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from unisono.speech.alignment.decision_tree import (
    Question,
    Side,
    StateTying,
    accumulate_contexts,
    build_tree,
    cluster_questions,
    frame_contexts,
    gaussian_loglike,
    leaves,
)
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import build_transcript_graph
from unisono.speech.corpus.lexicon import Lexicon

PHONES = ("SIL", "A", "B", "C", "D")
TOPOLOGY = Topology.initial(PHONES)
SIL, A, B, C, D = range(5)


def spoken(random: np.random.Generator, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Utterances in which the first state of A depends on whether C or D stood before."""
    pieces = []
    for _ in range(count):
        row = [SIL, *random.integers(1, 5, 12).tolist(), SIL]
        states, frames = [], []
        for before, phone in itertools.pairwise([SIL, *row]):
            for local in range(TOPOLOGY.size(phone)):
                for _ in range(int(random.integers(1, 4))):
                    states.append(int(TOPOLOGY.first[phone]) + local)
                    mean = np.array([phone, local, phone in (C, D)], dtype=float)
                    if phone == A and local == 0 and before in (C, D):
                        mean += 3
                    frames.append(mean + random.normal(0, 0.3, 3))
        pieces.append((np.array(frames, dtype=np.float32), np.array(states)))
    return pieces


def test_contexts_are_read_off_an_alignment() -> None:
    a, b = (int(TOPOLOGY.first[p]) for p in (A, B))
    states = np.array([0, 2, 1, 4, a, a, a + 1, a + 2, a, a + 1, a + 2, b, b + 1, b + 2])
    found = frame_contexts(states, TOPOLOGY)
    assert found[:4].tolist() == [[SIL, SIL, A, k] for k in (0, 2, 1, 4)]
    assert found[4:8].tolist() == [[SIL, A, A, k] for k in (0, 0, 1, 2)]
    assert found[8:11].tolist() == [[A, A, B, k] for k in (0, 1, 2)]
    assert found[11:].tolist() == [[A, B, SIL, k] for k in (0, 1, 2)]


def test_statistics_and_likelihood_are_the_formulas() -> None:
    pieces = spoken(np.random.default_rng(0), 3)
    counted = accumulate_contexts((x, frame_contexts(s, TOPOLOGY)) for x, s in pieces)
    frames = np.concatenate([x for x, _ in pieces]).astype(float)
    np.testing.assert_allclose(counted.sums[:, 1:4].sum(0), frames.sum(0))
    variance = frames.var(0)
    density = -0.5 * (np.log(2 * np.pi * variance) + (frames - frames.mean(0)) ** 2 / variance)
    constant = -0.5 * len(frames) * 3 * (1 + np.log(2 * np.pi))
    whole = gaussian_loglike(counted.sums.sum(0))
    assert float(whole) + constant == pytest.approx(density.sum())


def test_a_tree_asks_the_question_that_made_the_data() -> None:
    pieces = spoken(np.random.default_rng(1), 60)
    counted = accumulate_contexts((x, frame_contexts(s, TOPOLOGY)) for x, s in pieces)
    assert frozenset([C, D]) in cluster_questions(counted, len(PHONES))
    tying = build_tree(counted, TOPOLOGY, 1000)
    assert tying.states == TOPOLOGY.states + 1
    root = tying.trees[A][0]
    assert isinstance(root, Question) and root.side is Side.LEFT
    assert root.phones in (frozenset([C, D]), frozenset([SIL, A, B]))
    assert tying.states_of(C, A, B) == tying.states_of(D, A, SIL) != tying.states_of(B, A, B)
    numbers = sorted(n for row in tying.trees for tree in row for n in leaves(tree))
    assert numbers == list(range(tying.states))
    assert StateTying.from_json(json.loads(json.dumps(tying.to_json()))) == tying
    assert build_tree(counted, TOPOLOGY, TOPOLOGY.states).states == TOPOLOGY.states


def test_paths_have_the_states_of_their_neighbours() -> None:
    """Every path through a transcript has states that its own phones ask for."""
    ask = Question(Side.LEFT, frozenset([SIL]), 100, Question(Side.RIGHT, frozenset([B]), 101, 102))
    plain = StateTying.monophone(TOPOLOGY)
    trees = list(plain.trees)
    trees[A] = (ask, *trees[A][1:])
    tying = StateTying(trees=tuple(trees), states=103)
    lexicon = Lexicon(entries={"a": [("A",)], "ab": [("A", "B"), ("C", "A")]})
    words = ["a", "ab", "a"]
    paths = build_transcript_graph(words, lexicon, TOPOLOGY, tying)
    after: dict[int, list[int]] = {}
    for source, target in zip(paths.source.tolist(), paths.target.tolist(), strict=True):
        if source != target:
            after.setdefault(source, []).append(target)
    seen = set()

    def walk(place: int, row: list[int]) -> None:
        if place < 0:
            seen.add(tuple(row))
            return
        for target in after[place]:
            # The middle states of silence follow each other in any order: take one way.
            silent = target >= 0 and paths.phone[place] == SIL == paths.phone[target]
            steps = (paths.local[place], paths.local[target])
            if not silent or steps in ((0, 1), (1, 4)):
                walk(target, [*row, place])

    for place in paths.initial.tolist():
        walk(place, [])
    said = set()
    for row in seen:
        firsts = [p for p in row if paths.local[p] == 0]
        phones = [int(paths.phone[p]) for p in firsts]
        said.add(tuple(phones))
        around = zip([SIL, *phones], phones, [*phones[1:], SIL], strict=False)
        for place, (left, phone, right) in zip(firsts, around, strict=True):
            assert paths.state[place] == tying.states_of(left, phone, right)[0]
    wanted = set()
    for variants in itertools.product(*[lexicon.entries[word] for word in words]):
        for gaps in itertools.product([(), ("SIL",)], repeat=4):
            row = [x for gap, v in zip(gaps, [*variants, ()], strict=True) for x in (*gap, *v)]
            wanted.add(tuple(PHONES.index(name) for name in row))
    assert said == wanted
