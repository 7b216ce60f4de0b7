"""Lexicons: plain ones, with probabilities, and faulty ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.errors import UserError
from unisono.speech.corpus.lexicon import NOISE, SILENCE, UNKNOWN, Lexicon


def test_lexicon_faults_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    for content, word in (
        ("yes\n", "yes"),
        ("a #1 B\n", "#1"),
        ("<s> B\n", "<s>"),
        ("", "no word"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=word):
            Lexicon.read(path)
    path.write_text("no N OW\nno N OW\nno N AH OW\nyes Y EH S\n")
    lexicon = Lexicon.read(path)
    assert lexicon.entries["no"] == [("N", "OW"), ("N", "AH", "OW")]
    assert lexicon.phones == ["SIL", "AH", "EH", "N", "OW", "S", "Y"]
    assert lexicon.shortest(("no", "yes", "no")) == 7
    lexicon.write(tmp_path / "again.txt")
    assert Lexicon.read(tmp_path / "again.txt") == lexicon


def test_lexicons_with_probabilities(tmp_path: Path) -> None:
    file = tmp_path / "lexiconp.txt"
    file.write_text("the 1.0 DH AH\nthe 0.25 DH IY\na 1 AH\n!SIL 1.0 sil\n")
    lexicon = Lexicon.read(file)
    assert lexicon.entries["the"] == [("DH", "AH"), ("DH", "IY")]
    assert lexicon.phones == [SILENCE, "AH", "DH", "IY"]
    assert lexicon.speech_words == {"the", "a"}
    lexicon.with_unknown_word().write(tmp_path / "again.txt")
    assert Lexicon.read(tmp_path / "again.txt") == lexicon.with_unknown_word()
    rows = file.read_text().replace("1.0 ", "1.0 0.2 1.1 1 ").replace("0.25 ", "0.25 0.3 1.6 0 ")
    file.write_text(rows.replace("a 1 ", "a 1 0.5 1 1.5 "))
    assert Lexicon.read(file) == lexicon
    file.write_text("".join(f"w{n} w{n} A B\n" for n in range(20_000)))  # align_lexicon.txt
    with pytest.raises(UserError, match="20003 different phones"):
        Lexicon.read(file)
    file.write_text("one 1 UW\ntwo T UW\n")  # a phone that looks like a number
    assert Lexicon.read(file).entries["one"] == [("1", "UW")]


def test_the_lexicons_own_word_for_what_it_lacks() -> None:
    plain = Lexicon(entries={"a": [("A",)]})
    assert plain.with_unknown_word().entries[UNKNOWN] == [(NOISE,)]
    own = Lexicon(entries={"a": [("A",)], "<UNK>": [("GBG",)]})
    assert (
        own.with_unknown_word().unknown_word == "<UNK>"
        and own.with_unknown_word().entries == own.entries
    )
