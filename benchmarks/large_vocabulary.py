"""A graph of tens of thousands of words, and decoding with it.

    python benchmarks/large_vocabulary.py [--words 36000] [--states 960] [--utterances 20]

makes up a lexicon, a text from which bigrams are estimated, and trees that tie states; builds the
decoding graph; makes up sentences from the text and, along a path of states through each, noisy
log-likelihoods in which the true state is better by `--gains` on average than any other one (noise
of standard deviation 5): the smaller, the harder and the slower. Prints the seconds and the memory
of the graph, and error rate and speed of decoding on one core.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from unisono.speech.alignment.decision_tree import Node, Question, Side, StateTying
from unisono.speech.alignment.topology import MIN_PHONE_FRAMES, Topology
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.decoding.decoder import Decoder
from unisono.speech.decoding.scoring import count_errors
from unisono.speech.graph.decoding_graph import GraphInputs, build_graph
from unisono.speech.graph.language_model import estimate_ngrams

_PHONES = 40
_SHIFT_S = 0.01
_NOISE = 5.0
_SCALE = 0.1


def make_lexicon(words: int, random: np.random.Generator) -> Lexicon:
    """Words of 2 to 12 phones that alternate between consonants and vowels; some have variants."""
    consonants = [f"C{n}" for n in range(_PHONES * 3 // 5)]
    vowels = [f"V{n}" for n in range(_PHONES - len(consonants))]
    entries: dict[str, list[tuple[str, ...]]] = {}
    for number in range(words):
        variants = []
        for _ in range(1 + (random.random() < 0.08)):
            kinds = (consonants, vowels) if random.random() < 0.7 else (vowels, consonants)
            size = int(np.clip(random.poisson(6), 2, 12))
            variants.append(tuple(str(random.choice(kinds[n % 2])) for n in range(size)))
        entries[f"w{number}"] = variants
    return Lexicon(entries=entries)


def make_text(words: int, sentences: int, random: np.random.Generator) -> list[tuple[str, ...]]:
    """Sentences whose words follow Zipf's law, each likely after a few certain ones."""
    shares = 1 / np.arange(1, words + 1)
    shares /= shares.sum()
    text = []
    for _ in range(sentences):
        numbers = random.choice(words, size=int(random.integers(4, 16)), p=shares)
        follow = random.random(len(numbers)) < 0.5
        for n in range(1, len(numbers)):
            if follow[n]:
                numbers[n] = (7 * numbers[n - 1] + int(random.integers(3))) % words
        text.append(tuple(f"w{n}" for n in numbers))
    return text


def make_tying(topology: Topology, states: int, random: np.random.Generator) -> StateTying:
    """Trees of random questions, about so many leaves in all."""
    sizes = np.diff(topology.first)
    trees = int((sizes[sizes == MIN_PHONE_FRAMES]).sum())
    depth = int(np.log2(max(states / trees, 1)))
    numbers = iter(range(10**9))

    def grow(levels: int) -> Node:
        if levels == 0:
            return next(numbers)
        side = Side.LEFT if random.random() < 0.5 else Side.RIGHT
        chosen = random.choice(len(sizes), size=len(sizes) // 3, replace=False)
        return Question(side, frozenset(chosen.tolist()), grow(levels - 1), grow(levels - 1))

    rows = tuple(
        tuple(grow(depth if size == MIN_PHONE_FRAMES else 0) for _ in range(size)) for size in sizes
    )
    return StateTying(trees=rows, states=next(numbers))


def make_loglikes(
    words: tuple[str, ...], made: GraphInputs, gain: float, random: np.random.Generator
) -> np.ndarray:
    """Log-likelihoods along a path through some words, between silences."""
    numbers = {phone: n for n, phone in enumerate(made.topology.phones)}
    phones = [0, *(numbers[p] for w in words for p in made.lexicon.entries[w][0]), 0]
    path: list[int] = []
    for left, phone, right in zip([0, *phones], phones, [*phones[1:], 0], strict=False):
        for state in made.tying.states_of(left, phone, right):
            path += [state] * int(random.integers(1, 5))
    loglikes = random.normal(0, _NOISE, (len(path), made.tying.states)).astype(np.float32)
    loglikes[np.arange(len(path)), path] += gain
    return loglikes


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=36_000)
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--states", type=int, default=960)
    parser.add_argument("--utterances", type=int, default=20)
    parser.add_argument("--gains", default="15,10,7")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    lexicon = make_lexicon(options.words, random)
    text = make_text(options.words, options.sentences, random)
    language = estimate_ngrams(text, lexicon.words, 2)
    topology = Topology.initial(lexicon.phones)
    tying = make_tying(topology, options.states, random)
    made = GraphInputs(
        lexicon=lexicon, language_model=language, topology=topology, tying=tying, silence=0.5
    )
    print(
        f"{options.words} words, {len(language.tables[1])} bigrams, {_PHONES} phones, "
        f"{tying.states} states",
        flush=True,
    )
    before = time.process_time()
    wall = time.perf_counter()
    graph = build_graph(made)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"graph: {len(graph.final)} states, {len(graph.source)} arcs; "
        f"{time.perf_counter() - wall:.1f} s ({time.process_time() - before:.1f} s of one core), "
        f"{memory:.2f} GiB at most",
        flush=True,
    )
    sentences = [text[n] for n in random.choice(len(text), options.utterances, replace=False)]
    with Decoder(graph, made.words, 1) as decoder:
        for gain in map(float, options.gains.split(",")):
            loglikes = [make_loglikes(words, made, gain, random) for words in sentences]
            list(decoder.decode(loglikes[:1], _SCALE, 0.0))  # reads the graph
            before = time.process_time()
            found = [h.words for h in decoder.decode(loglikes, _SCALE, 0.0)]
            spent = time.process_time() - before
            audio = _SHIFT_S * sum(map(len, loglikes))
            errors = sum(count_errors(a, b).total for a, b in zip(sentences, found, strict=True))
            count = sum(map(len, sentences))
            print(
                f"gain {gain:4.1f}: {audio:.0f} s of speech, {count} words, "
                f"{100 * errors / count:.1f}% wrong, {spent / audio:.3f} times real time"
            )


if __name__ == "__main__":
    main()
