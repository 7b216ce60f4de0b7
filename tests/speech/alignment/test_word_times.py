"""Where words begin, against speech whose times are known."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from unisono.speech.alignment.trainer import Alignment
from unisono.speech.alignment.word_times import timed_words, word_times
from unisono.speech.corpus.ctm import read_ctm
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.features.spectrum import frame_shift
from unisono.speech.prepare import PrepareOptions, prepare
from unisono.speech.synthesis.synthesize import SynthesisOptions, synthesize


def path(words: list[int]) -> Alignment:
    return Alignment(states=np.zeros(len(words), dtype=np.int64), words=np.array(words))


def test_a_word_begins_between_the_middles_of_two_frames() -> None:
    # Frame t is of the samples from 10 t to 10 t + 25 ms: its middle is at 10 t + 12.5 ms.
    found = timed_words(("go", "go", "on"), path([-1, -1, 0, 0, 0, 1, 1, -1, 2, 2]))
    assert [t.word for t in found] == ["go", "go", "on"]
    np.testing.assert_allclose([t.start for t in found], [0.0275, 0.0575, 0.0875])
    np.testing.assert_allclose([t.end for t in found], [0.0575, 0.0775, 0.1075])
    assert timed_words(("go",), path([0, 0]))[0].start == 0


def test_times_are_those_of_the_recording_and_copies_are_left_out(tmp_path: Path) -> None:
    piece = Utterance(
        id="u", speaker="s", words=("go",), recording="r", audio="r.wav", start=3.0, channel=1
    )
    pairs = [(piece, path([-1, 0, 0])), (piece.at_speed(0.9), path([-1, 0, 0]))]
    (tmp_path / "words.ctm").write_text(word_times(pairs))
    assert (tmp_path / "words.ctm").read_text() == "r 2 3.0175 0.0200 go\n"
    assert list(read_ctm(tmp_path / "words.ctm")) == ["r"]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_word_starts_of_synthesised_speech(tmp_path: Path) -> None:
    if find_spec("espeakng_loader") is None:
        pytest.skip("the demo extra is not installed")
    synthesize(tmp_path / "data", SynthesisOptions(hours=0.15, test_hours=0.001), lambda _: None)
    train = tmp_path / "data" / "train"
    prep = prepare(
        train,
        tmp_path / "data" / "lexicon.txt",
        tmp_path / "prep",
        PrepareOptions(),
        lambda _: None,
    )
    true, found = read_ctm(train / "words.ctm"), read_ctm(prep.path / "words.ctm")
    assert len(found) > 0.99 * len(true)
    errors = [
        abs(ours.start - theirs.start)
        for name, words in found.items()
        for ours, theirs in zip(words, true[name], strict=True)
    ]
    assert np.median(errors) <= 0.020
    assert np.percentile(errors, 90) <= 0.060


def test_frames_of_22050_hz_are_not_10_ms_apart() -> None:
    # A shift of 10 ms is 220.5 samples there; frames are 220 samples apart, as Kaldi's.
    path = Alignment(states=np.zeros(2001, dtype=np.int64), words=np.repeat([-1, 0], [2000, 1]))
    (found,) = timed_words(("a",), path, frame_shift(22050))
    assert found.start == pytest.approx(2000 * 220 / 22050 + 0.0075)
    assert frame_shift(16000) == 0.01
