"""Errors against a second implementation, and what a score says."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.speech.decoding.scoring import count_errors, score

pytest.importorskip("kaldialign", reason="the speech extra is not installed")


def distance(a: list[str], b: list[str]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def test_counts_are_a_least_edit_distance() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        a, b = (random.choice(list("abcd"), random.integers(0, 9)).tolist() for _ in range(2))
        errors = count_errors(a, b)
        assert errors.total == distance(a, b)
        assert errors.insertions - errors.deletions == len(b) - len(a)
        assert errors.words == len(a)


def test_a_score_by_hand() -> None:
    said = {"u1": ("one", "two"), "u2": ("three",), "u3": ("four", "five")}
    found = {"u1": ("one", "too"), "u2": ("three", "three"), "u3": ("four",)}
    made = score(said, found, {"u1": "ann", "u2": "bob", "u3": "ann"})
    facts = made.facts()
    assert facts["wer"] == pytest.approx(3 / 5)
    assert (facts["ins"], facts["del"], facts["sub"], facts["words"]) == (1, 1, 1, 5)
    assert facts["cer"] == pytest.approx((1 + 5 + 4) / (6 + 5 + 8))
    low, high = made.interval
    assert 0 <= low < 0.6 < high
    assert {name: own.total for name, own in made.speakers.items()} == {"ann": 2, "bob": 1}
    assert made.sentences == (3, 3)
    assert "ref  one two\n  hyp  one too" in made.aligned[0]
    assert any("60.00%" in line for line in made.lines())


def test_nothing_said_and_nothing_found() -> None:
    made = score({"u": ("a",)}, {"u": ()}, {"u": "s"})
    assert made.errors.rate == 1
    assert made.interval == (1.0, 1.0)


def test_words_found_where_nothing_was_said_are_errors() -> None:
    made = score({"a": (), "b": ("x",)}, {"a": ("x", "x"), "b": ("x",)}, {"a": "s", "b": "s"})
    assert made.errors.insertions == 2 and made.errors.words == 1


def test_an_interval_holds_rates_that_can_be() -> None:
    """One error in 40 utterances: the normal distribution would reach below none."""
    said = {f"u{n}": ("a", "b", "c") for n in range(40)}
    found = {**said, "u7": ("a", "b")}
    low, high = score(said, found, dict.fromkeys(said, "s")).interval
    assert low == 0
    # The error is drawn k times with probability about exp(-1) / k!: more than 3 times in 1.9%.
    assert high == pytest.approx(3 / 120)
