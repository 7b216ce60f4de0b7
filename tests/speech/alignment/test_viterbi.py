"""The best path against all paths, one by one."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from unisono.speech.alignment import viterbi
from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import (
    TranscriptGraph,
    build_transcript_graph,
    equal_alignment,
)
from unisono.speech.alignment.viterbi import GraphBatch
from unisono.speech.corpus.lexicon import Lexicon

LEXICON = Lexicon(entries={"a": [("A",)], "ab": [("A", "B"), ("B",)]})
TOPOLOGY = Topology.initial(LEXICON.phones)
SILENCE = 0.3
SIL, A, B = range(3)


def sequences(words: list[str]) -> list[list[tuple[int, bool]]]:
    """All phone sequences with optional silence: (phone, whether it is such silence)."""
    made = []
    for variants in itertools.product(*[LEXICON.entries[word] for word in words]):
        for gaps in itertools.product([False, True], repeat=len(words) + 1):
            row: list[tuple[int, bool]] = []
            for gap, variant in zip(gaps, [*variants, ()], strict=True):
                row += [(SIL, True)] if gap else []
                row += [({"A": A, "B": B}[phone], False) for phone in variant]
            made.append(row)
    return made


@cache
def walks(phone: int, frames: int) -> list[list[int]]:
    """All ways through a phone in so many frames: local states."""
    made, moves = [], TOPOLOGY.moves[phone]
    for row in itertools.product(range(TOPOLOGY.size(phone)), repeat=frames):
        steps = all(moves[i, j] > 0 for i, j in itertools.pairwise(row))
        if row[0] == 0 and steps and moves[row[-1], 5] > 0:
            made.append(list(row))
    return made


def best_by_hand(words: list[str], loglikes: np.ndarray, scale: float) -> tuple[float, list[int]]:
    scores, best = TOPOLOGY.scores(), (-np.inf, [0])
    for row in sequences(words):
        silences = sum(gap for _, gap in row)
        passed = len(words) + 1 - silences
        prior = silences * np.log(SILENCE) + passed * np.log(1 - SILENCE)
        for cuts in itertools.combinations(range(1, len(loglikes)), len(row) - 1):
            spans = list(itertools.pairwise((0, *cuts, len(loglikes))))
            if any(b - a < 3 for a, b in spans):
                continue
            total, states = prior, []
            for (phone, _), (a, b) in zip(row, spans, strict=True):
                value, walk = max(
                    (
                        scale
                        * sum(
                            loglikes[a + k, TOPOLOGY.first[phone] + s] for k, s in enumerate(walk)
                        )
                        + sum(scores[phone, i, j] for i, j in itertools.pairwise([*walk, 5])),
                        walk,
                    )
                    for walk in walks(phone, b - a)
                )
                total += value
                states += [int(TOPOLOGY.first[phone]) + s for s in walk]
            best = max(best, (total, states))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_best_path_of_each_utterance(seed: int) -> None:
    random = np.random.default_rng(seed)
    spoken = [(["a"], 5), (["ab"], 8), (["a", "ab"], 9), (["a"], 2)]
    every = [random.normal(0, 3, (n, TOPOLOGY.states)).astype(np.float32) for _, n in spoken]
    paths = [
        build_transcript_graph(words, LEXICON, TOPOLOGY, StateTying.monophone(TOPOLOGY))
        for words, _ in spoken
    ]
    block = GraphBatch(paths, [n for _, n in spoken])
    likes = [like[:, states] for like, states in zip(every, block.needed, strict=True)]
    found = block.find(likes, TOPOLOGY.scores(), SILENCE, 0.7)
    assert found.reached.tolist() == [True, True, True, False]
    at = frames = 0
    for (words, n), like in zip(spoken[:3], every[:3], strict=True):
        _, wanted = best_by_hand(words, like, 0.7)
        assert found.states[at : at + n].tolist() == wanted
        at += n
        frames += n
    assert found.moves.sum() == frames
    wanted_silences = sum(
        int((found.states[:at] == TOPOLOGY.first[SIL + 1] - 1)[k])
        and not (k + 1 < at and found.states[k + 1] == found.states[k])
        for k in range(at)
    )
    assert found.silences == wanted_silences


def plain_viterbi(graph: TranscriptGraph, loglikes: np.ndarray, scale: float) -> list[int]:
    """The states of the best path, edge by edge; [] if there is none."""
    scores = TOPOLOGY.scores()
    taken = {0: 0.0, 1: np.log(SILENCE), -1: np.log(1 - SILENCE)}
    alpha = {
        int(node): taken[1 if silent else -1]
        for node, silent in zip(graph.initial, graph.initial_silence, strict=True)
    }
    back: list[dict[int, int]] = []
    for t in range(len(loglikes) + 1):
        if t:
            best: dict[int, tuple[float, int]] = {}
            for i, j, move, quiet in zip(
                graph.source.tolist(), graph.target.tolist(), graph.move, graph.silence, strict=True
            ):
                if i in alpha and (j < 0) == (t == len(loglikes)):
                    cost = scores[graph.phone[i], graph.local[i], move] + taken[int(quiet)]
                    best[j] = max(best.get(j, (-np.inf, -1)), (alpha[i] + cost, i))
            alpha = {j: value for j, (value, _) in best.items()}
            back.append({j: i for j, (_, i) in best.items()})
        if t < len(loglikes):
            alpha = {j: v + scale * loglikes[t, graph.state[j]] for j, v in alpha.items()}
    if -1 not in alpha:
        return []
    nodes, node = [], -1
    for each in reversed(back):
        node = each[node]
        nodes.append(node)
    return [int(graph.state[n]) for n in reversed(nodes)]


@pytest.mark.parametrize("beam", [viterbi.BEAM, 0.0, float("inf")])
def test_windows_hold_the_best_paths_of_long_utterances(
    monkeypatch: pytest.MonkeyPatch, beam: float
) -> None:
    monkeypatch.setattr(viterbi, "BEAM", beam)
    random = np.random.default_rng(1)
    spoken = [
        (random.choice(["a", "ab"], n).tolist(), frames)
        for n, frames in ((9, 150), (12, 149), (20, 131), (3, 97), (30, 80), (1, 64), (2, 33))
    ]
    tying = StateTying.monophone(TOPOLOGY)
    graphs = [build_transcript_graph(words, LEXICON, TOPOLOGY, tying) for words, _ in spoken]
    every = [random.normal(0, 9, (n, TOPOLOGY.states)).astype(np.float32) for _, n in spoken]
    block = GraphBatch(graphs, [n for _, n in spoken])
    likes = [like[:, states] for like, states in zip(every, block.needed, strict=True)]
    found = block.find(likes, TOPOLOGY.scores(), SILENCE, 0.7)
    wanted = [plain_viterbi(graph, like, 0.7) for graph, like in zip(graphs, every, strict=True)]
    assert found.reached.tolist() == [bool(path) for path in wanted]
    assert [*map(bool, wanted)] == [True, True, True, True, False, True, True]
    if beam:  # with none to speak of, only that a path is found if there is one
        cuts = np.cumsum([n for _, n in spoken])[:-1]
        for path, states in zip(wanted, np.split(found.states, cuts), strict=True):
            assert not path or states.tolist() == path


def test_moves_are_probabilities_before_and_after_learning() -> None:
    for topology in (TOPOLOGY, TOPOLOGY.reestimate(np.random.default_rng(0).poisson(3, (3, 5, 6)))):
        sums = topology.moves.sum(2)
        np.testing.assert_allclose(sums[sums > 0], 1)
        assert ((topology.moves > 0) == (TOPOLOGY.moves > 0)).all()
    learnt = TOPOLOGY.reestimate(np.zeros((3, 5, 6)))
    np.testing.assert_allclose(learnt.moves[A, 0, :2], 0.5)


def test_a_flat_start_divides_the_frames_evenly() -> None:
    states = equal_alignment(["a"], 26, LEXICON, TOPOLOGY)
    assert states.tolist() == [s for s in [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4] for _ in "xx"]
    assert equal_alignment(["a"], 4, LEXICON, TOPOLOGY).tolist() == [5, 5, 6, 7]
