"""Paths and their costs, by one process and by several."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.topology import Topology
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.decoding.decoder import Decoder
from unisono.speech.decoding.progress import DecodingProgress
from unisono.speech.graph.decoding_graph import GraphInputs, build_graph
from unisono.speech.graph.language_model import estimate_ngrams

pytest.importorskip("kaldi_decoder", reason="the speech extra is not installed")

LEXICON = Lexicon(
    entries={
        "aba": [("A", "B", "A")],
        "ab": [("A", "B")],
        "ac": [("A", "C"), ("C", "A")],
        "ba": [("B", "A")],
        "c": [("C",)],
        "cab": [("C", "A", "B")],
    }
)
TEXT = [["aba", "c"], ["ab", "ac", "c"], ["cab", "ba"], ["ba", "ab", "ba"], ["c", "aba"]]


@pytest.fixture(scope="module")
def inputs() -> GraphInputs:
    topology = Topology.initial(LEXICON.phones)
    return GraphInputs(
        lexicon=LEXICON,
        language_model=estimate_ngrams(TEXT, LEXICON.words, 2),
        topology=topology,
        tying=StateTying.monophone(topology),
        silence=0.3,
    )


@pytest.fixture(scope="module")
def loglikes(inputs: GraphInputs) -> list[np.ndarray]:
    """Noisy log-likelihoods of sentences of the language, some frames a state."""
    random = np.random.default_rng(0)
    made = []
    for sentence in TEXT:
        phones = [LEXICON.phones.index(p) for word in sentence for p in LEXICON.entries[word][0]]
        first = inputs.topology.first
        states = [s for p in phones for s in range(int(first[p]), int(first[p + 1]))]
        at = np.repeat(states, random.integers(1, 5, len(states)))
        scores = random.normal(0, 10, (len(at), inputs.topology.states))
        scores[np.arange(len(at)), at] += 8
        made.append(scores.astype(np.float32))
    return made


GRID = [(scale, penalty) for scale in (0.05, 0.1, 0.2) for penalty in (-2.0, 0.0, 3.0)]


def test_each_setting_finds_the_path_that_it_prefers(
    inputs: GraphInputs, loglikes: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a beam that loses nothing no other path can cost less, so the costs must be right."""
    monkeypatch.setattr("unisono.speech.decoding.decoder.BEAM", 300.0)
    with Decoder(build_graph(inputs), inputs.words, 1) as decoder:
        found = {setting: list(decoder.decode(loglikes, *setting)) for setting in GRID}
    for setting, paths in found.items():
        for number, path in enumerate(paths):
            others = min(other[number].cost(*setting) for other in found.values())
            assert path.cost(*setting) == pytest.approx(others, abs=1e-3)
    assert len({tuple(h.words for h in paths) for paths in found.values()}) > 3, "settings matter"


def test_an_utterance_without_a_path_has_no_words_and_is_never_preferred(
    inputs: GraphInputs,
) -> None:
    impossible = np.full((20, inputs.topology.states), -np.inf, dtype=np.float32)
    with Decoder(build_graph(inputs), inputs.words, 1) as decoder:
        (found,) = decoder.decode([impossible], 0.1, 0.5)
    assert found.words == () and found.cost(0.1, 0.5) == np.inf


def test_two_processes_give_the_same_and_count_their_cpu_time(
    inputs: GraphInputs, loglikes: list[np.ndarray]
) -> None:
    found = []
    for processes in (1, 2):
        with Decoder(build_graph(inputs), inputs.words, processes) as decoder:
            found.append([list(decoder.decode(loglikes, *setting)) for setting in GRID])
            assert (decoder.worker_cpu_s > 0) == (processes > 1)
    assert found[0] == found[1]


def test_progress_is_told_a_few_times() -> None:
    lines: list[str] = []
    lengths = [100] * 30 + [7000]
    progress = DecodingProgress(
        "decoding", lengths, worker_cpu_s=lambda: 0.0, processes=2, log=lines.append
    )
    for _ in lengths:
        progress.advance()
    assert [line.split(" of ")[0] for line in lines] == [
        "decoding: 10",
        "decoding: 20",
        "decoding: 30",
    ]
    assert all("times real time a core" in line and "left" in line for line in lines)
