"""Letters to phones: alignments and searches against plain enumeration, and a made-up language."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.graph.g2p import (
    GraphemeToPhoneme,
    _align,
    _best_lengths,
    _count,
    _group,
)
from unisono.speech.graph.language_model import BEGIN, END

PAIRS = [
    ("cat", ("K", "A", "T")),
    ("ax", ("A", "K", "S")),
    ("tax", ("T", "A", "K", "S")),
    ("that", ("D", "A", "T")),
    ("ac", ("A", "K")),
    ("w", ("D", "U", "B", "L")),  # more phones than two a letter: left out
]


def alignments(letters: int, phones: int) -> Iterator[tuple[int, ...]]:
    """All ways to give each letter 0, 1 or 2 phones."""
    for lengths in itertools.product(range(3), repeat=letters):
        if sum(lengths) == phones:
            yield lengths


def test_expected_counts_and_best_alignments_are_those_of_enumeration() -> None:
    groups, weights, letters = _group(PAIRS)
    weights = np.random.default_rng(0).uniform(0.1, 1.0, len(weights))
    counts, expected = np.zeros_like(weights), np.zeros_like(weights)
    for group in groups:
        _count(group, weights, counts)
        best = _best_lengths(group, weights)
        for row, n in enumerate(group.words):
            word, phones = PAIRS[n]
            scores = {}
            for lengths in alignments(len(word), len(phones)):
                starts = np.cumsum([0, *lengths])
                used = [group.choices[k][row, i, starts[i]] for i, k in enumerate(lengths)]
                scores[lengths] = math.prod(weights[used]), used
            total = sum(score for score, _ in scores.values())
            for score, used in scores.values():
                np.add.at(expected, used, score / total)
            assert tuple(best[row]) == max(scores, key=lambda lengths: scores[lengths][0])
    np.testing.assert_allclose(counts, expected, rtol=1e-12)
    spelt = sum(len(word) for word, _ in PAIRS[:-1])
    assert counts.sum() == pytest.approx(spelt)  # every letter has one graphone
    assert len(letters) == len(weights)


def test_words_are_divided_as_they_are_spelt() -> None:
    found = dict(_align(PAIRS * 3))
    assert found["tax"] == [("T",), ("A",), ("K", "S")]
    assert found["cat"] == [("K",), ("A",), ("T",)]
    assert "w" not in found
    for word, phones in PAIRS[:-1]:
        assert tuple(p for said in found[word] for p in said) == phones


def say(word: str) -> tuple[str, ...]:
    """The rules of a made-up language: c is soft before e and i, sh is one sound, h is silent."""
    phones: list[str] = []
    for at, letter in enumerate(word):
        after = word[at + 1 : at + 2]
        if letter == "c":
            phones.append("S" if after in ("e", "i") else "K")
        elif letter == "x":
            phones += ["K", "S"]
        elif letter == "s":
            phones.append("SH" if after == "h" else "S")
        elif letter != "h":
            phones.append(letter.upper())
    return tuple(phones)


def spell(draw: random.Random) -> str:
    syllables = ("ca", "ce", "ci", "co", "sha", "so", "xe", "ta", "ti", "ho", "ne")
    return "".join(draw.choice(syllables) for _ in range(draw.randrange(2, 5)))


def test_rules_of_a_made_up_language_are_learned() -> None:
    draw = random.Random(0)
    words = sorted({spell(draw) for _ in range(1200)})
    draw.shuffle(words)
    known, unknown = words[200:], words[:200]
    model = GraphemeToPhoneme.train(Lexicon(entries={word: [say(word)] for word in known}))
    wrong = [word for word in unknown if model.pronounce(word) != say(word)]
    assert len(wrong) <= 2


def test_the_beam_finds_the_best_of_all_pronunciations() -> None:
    draw = random.Random(1)
    words = {word for word in (spell(draw) for _ in range(300)) if len(word) <= 8}
    # Several pronunciations of each word, so that there is much to choose from.
    lexicon = Lexicon(entries={w: [say(w), say(w[::-1])[: len(w)]] for w in sorted(words)})
    model = GraphemeToPhoneme.train(lexicon)
    for word in ("cita", "xeho", "shac"):
        scores = {}
        for names in itertools.product(*(model.graphones[letter] for letter in word)):
            whole = [BEGIN, *(name for name, _ in names), END]
            score = sum(model.ngrams.log10(whole[i], whole[:i]) for i in range(1, len(whole)))
            said = tuple(phone for _, phones in names for phone in phones)
            scores[said] = max(score, scores.get(said, -math.inf))
        scores.pop((), None)
        assert model.pronounce(word) == max(scores, key=lambda said: scores[said])


def test_words_that_cannot_be_guessed() -> None:
    model = GraphemeToPhoneme.train(
        Lexicon(entries={"cat": [("K", "A", "T")], "<unk>": [("SPN",)], "h": [("H",)]})
    )
    assert model.pronounce("tac") is not None
    assert model.pronounce("dog") is None  # letters that no word has
    assert model.pronounce("<unk>") is None  # what is noise teaches nothing
    assert GraphemeToPhoneme.train(Lexicon(entries={"<unk>": [("SPN",)]})).pronounce("a") is None
    assert GraphemeToPhoneme.train(Lexicon(entries={"w": [("D", "U", "B")]})).pronounce("w") is None
