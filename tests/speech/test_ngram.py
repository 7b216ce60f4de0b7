"""n-grams: probabilities add up to one, files come back, broken ones are one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.errors import UserError
from unisono.speech.graph.language_model import BEGIN, END, estimate, read_arpa

TEXT = [["a", "b", "a", "c"], ["a", "b"], ["c"], ["a", "b", "a", "b"]]
WORDS = ["a", "b", "c", "never"]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_history_adds_up_to_one(order: int) -> None:
    model = estimate(TEXT, WORDS, order)
    for history in ([], [BEGIN], ["a"], ["b", "a"], ["never"], ["c", "never"]):
        total = sum(10 ** model.log10(word, history) for word in [*WORDS, END])
        assert total == pytest.approx(1)
    assert model.perplexity(TEXT) < 5


def test_witten_bell_by_hand() -> None:
    model = estimate(TEXT, WORDS, 2)
    # 11 words and 4 ends, of 4 kinds; 5 equally likely ones below.
    unigram = (5 + 4 / 5) / (15 + 4)
    assert 10 ** model.log10("a", []) == pytest.approx(unigram)
    # After a: b four times, c once.
    c = (2 + 4 / 5) / 19
    assert 10 ** model.log10("c", ["a"]) == pytest.approx((1 + 2 * c) / (5 + 2))
    assert 10 ** model.log10("a", ["a"]) == pytest.approx(2 * unigram / 7)


def test_a_cut_model_is_the_shorter_model(tmp_path: Path) -> None:
    cut = estimate(TEXT, WORDS, 3).cut(1)
    short = estimate(TEXT, WORDS, 1)
    assert {g: v for g, (v, _) in cut.tables[0].items()} == {
        g: v for g, (v, _) in short.tables[0].items()
    }
    model = estimate(TEXT, WORDS, 3)
    model.write(tmp_path / "lm.arpa")
    again = read_arpa(tmp_path / "lm.arpa")
    assert again.order == 3
    assert again.perplexity(TEXT) == pytest.approx(model.perplexity(TEXT), rel=1e-4)


@given(noise=st.binary(max_size=30), at=st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_a_broken_file_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("lm") / "lm.arpa"
    estimate(TEXT, WORDS, 2).write(path)
    data = path.read_bytes()
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        read_arpa(path).within(WORDS)
    except UserError as error:
        assert "\n" not in str(error)


def test_a_model_of_other_words_is_refused() -> None:
    with pytest.raises(UserError, match="no word in common"):
        estimate(TEXT, WORDS, 2).within(["other"])
