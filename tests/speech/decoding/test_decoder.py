"""Lattices rescored with other settings give the words that decoding with these gives."""

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


def test_whole_lattices_rescored_are_what_decoding_finds(
    inputs: GraphInputs, loglikes: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With beams that lose nothing both are exact, so they must agree with every setting."""
    for name in ("BEAM", "_LATTICE_SEARCH_BEAM", "_LATTICE_BEAM"):
        monkeypatch.setattr(f"unisono.speech.decoding.decoder.{name}", 300.0)
    results = set()
    with Decoder(build_graph(inputs), inputs.words, 1) as decoder:
        lattices = list(decoder.make_lattices(loglikes, 0.1))
        for scale, penalty in GRID:
            decoded = list(decoder.decode(loglikes, scale, penalty))
            assert decoder.rescore(lattices, scale, penalty) == decoded
            results.add(tuple(decoded))
    assert len(results) > 3, "the settings matter here"


def test_two_processes_give_the_same_and_count_their_cpu_time(
    inputs: GraphInputs, loglikes: list[np.ndarray]
) -> None:
    found = []
    for processes in (1, 2):
        with Decoder(build_graph(inputs), inputs.words, processes) as decoder:
            lattices = list(decoder.make_lattices(loglikes, 0.1))
            found.append([decoder.rescore(lattices, *setting) for setting in GRID])
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
