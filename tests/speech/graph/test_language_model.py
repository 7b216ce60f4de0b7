"""n-grams: probabilities add up to one, files come back, broken ones are one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.errors import UserError
from unisono.speech.graph.language_model import (
    BEGIN,
    END,
    NgramModel,
    estimate_ngrams,
    read_arpa,
    read_language_model,
)

TEXT = [["a", "b", "a", "c"], ["a", "b"], ["c"], ["a", "b", "a", "b"]]
WORD_TIMES_FILE = ["a", "b", "c", "never"]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_history_adds_up_to_one(order: int) -> None:
    model = estimate_ngrams(TEXT, WORD_TIMES_FILE, order)
    for history in ([], [BEGIN], ["a"], ["b", "a"], ["never"], ["c", "never"]):
        total = sum(10 ** model.log10(word, history) for word in [*WORD_TIMES_FILE, END])
        assert total == pytest.approx(1)
    assert model.perplexity(TEXT) < 5


def test_witten_bell_by_hand() -> None:
    model = estimate_ngrams(TEXT, WORD_TIMES_FILE, 2)
    # 11 words and 4 ends, of 4 kinds; 5 equally likely ones below.
    unigram = (5 + 4 / 5) / (15 + 4)
    assert 10 ** model.log10("a", []) == pytest.approx(unigram)
    # After a: b four times, c once.
    c = (2 + 4 / 5) / 19
    assert 10 ** model.log10("c", ["a"]) == pytest.approx((1 + 2 * c) / (5 + 2))
    assert 10 ** model.log10("a", ["a"]) == pytest.approx(2 * unigram / 7)


def test_a_cut_model_is_the_shorter_model(tmp_path: Path) -> None:
    cut = estimate_ngrams(TEXT, WORD_TIMES_FILE, 3).with_order(1)
    short = estimate_ngrams(TEXT, WORD_TIMES_FILE, 1)
    assert {g: v for g, (v, _) in cut.tables[0].items()} == {
        g: v for g, (v, _) in short.tables[0].items()
    }
    model = estimate_ngrams(TEXT, WORD_TIMES_FILE, 3)
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
    estimate_ngrams(TEXT, WORD_TIMES_FILE, 2).write(path)
    data = path.read_bytes()
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        read_arpa(path).restricted_to(WORD_TIMES_FILE)
    except UserError as error:
        assert "\n" not in str(error)


def test_a_model_of_other_words_is_refused() -> None:
    with pytest.raises(UserError, match="no word in common"):
        estimate_ngrams(TEXT, WORD_TIMES_FILE, 2).restricted_to(["other"])


def test_packed_language_models(tmp_path: Path) -> None:
    model = estimate_ngrams([("a", "b"), ("b",)], ["a", "b"], 2)
    model.write(tmp_path / "lm.arpa")
    packed = gzip.compress((tmp_path / "lm.arpa").read_bytes())
    (tmp_path / "lm.arpa.gz").write_bytes(packed)
    read: NgramModel = read_arpa(tmp_path / "lm.arpa.gz")
    assert read.tables == read_arpa(tmp_path / "lm.arpa").tables
    for broken in (packed[:-20], packed[:30] + bytes(20) + packed[50:]):
        (tmp_path / "lm.arpa.gz").write_bytes(broken)
        with pytest.raises(UserError, match="cannot unpack"):
            read_arpa(tmp_path / "lm.arpa.gz")


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("-1e308\tio\t-0.3", ""),  # an infinite cost, at which building the graph never ended
        ("-inf\tio", ""),
        ("-0.5\tio\t1e308", "not a 1-gram"),
        ("-0.5\tio\tnan", "not a 1-gram"),
        ("nan\tio", "not a 1-gram"),
        ("0.5\tio", "not a 1-gram"),
    ],
)
def test_numbers_that_no_language_model_has(tmp_path: Path, entry: str, word: str) -> None:
    file = tmp_path / "lm.arpa"
    file.write_text(f"\\data\\\nngram 1=2\n\n\\1-grams:\n-0.5\t</s>\n{entry}\n\n\\end\\\n")
    if not word:
        assert read_arpa(file).tables[0][("io",)][0] == -99
    else:
        with pytest.raises(UserError, match=word):
            read_arpa(file)


def test_a_language_model_without_an_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lm.arpa"
    file.write_text("\\data\\\nngram 1=1\n\n\\1-grams:\n-0.5\tio\n\n\\end\\\n")
    with pytest.raises(UserError, match="no sentence could end"):
        read_arpa(file)


def test_words_of_a_language_model_that_the_lexicon_lacks_are_told(tmp_path: Path) -> None:
    file = tmp_path / "lm.arpa"
    words = ["<s>", "</s>", "io", *"zyxw"]
    entries = "".join(f"-0.8\t{word}\n" for word in words)
    file.write_text(f"\\data\\\nngram 1={len(words)}\n\n\\1-grams:\n{entries}\n\\end\\\n")
    lines: list[str] = []
    language_model = read_language_model(file, ["io", "uya"], lines.append)
    assert set(language_model.tables[0]) == {("<s>",), ("</s>",), ("io",)}
    assert len(lines) == 1 and "4 words" in lines[0] and "w, x, y, ..." in lines[0]
    lines.clear()
    read_language_model(file, words, lines.append)
    assert lines == []
