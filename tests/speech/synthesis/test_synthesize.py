"""Speech made on the spot: whole data directories, honest times, other voices in the test."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from unisono.errors import UserError
from unisono.speech.corpus.ctm import read_ctm
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.synthesis import synthesize as synthesis
from unisono.speech.synthesis import tts
from unisono.speech.synthesis.phrases import draw_phrase, phrase_lexicon, phrase_words
from unisono.speech.synthesis.synthesize import SynthesisOptions, synthesize
from unisono.speech.synthesis.tts import divide_variants
from unisono.speech.validation import InputOptions, validate_data

HOW = SynthesisOptions(hours=0.004, test_hours=0.002, snr=(60, 60), seed=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("espeakng_loader") is None:
        pytest.skip("the demo extra is not installed")
    out = tmp_path_factory.mktemp("synthesis") / "data"
    synthesize(out, HOW, lambda _: None)
    return out


def test_every_word_that_may_be_said_has_a_pronunciation() -> None:
    assert phrase_words() == set(phrase_lexicon().entries)
    random = np.random.default_rng(0)
    drawn = [draw_phrase(random) for _ in range(5000)]
    assert {word for phrase in drawn for word in phrase} == phrase_words()
    assert max(map(len, drawn)) <= 8
    # Commands repeat, digit strings hardly ever do.
    assert 1000 < len(set(drawn)) < 5000


def test_no_voice_speaks_for_training_and_for_the_test() -> None:
    names = [
        "f1",
        "f2",
        "f3",
        "Gene",
        "Gene2",
        "klatt",
        "klatt4",
        "zac",
        "fast",
        "ed",
        "Mike",
        "mike2",
    ]
    for seed in range(20):
        train, test = divide_variants(names, seed)
        assert sorted(train + test) == sorted(set(names) - {"fast"})
        families = [{name.lower().rstrip("0123456789") for name in part} for part in (train, test)]
        assert families[0] and families[1] and not families[0] & families[1]


def test_a_data_directory_without_fault(made: Path) -> None:
    lexicon = Lexicon.read(made / "lexicon.txt")
    variants = []
    for part, hours in (("train", HOW.hours), ("test", HOW.test_hours)):
        validated = validate_data(made / part, InputOptions(), lexicon)
        assert len(validated.exclusions) == 0 and validated.reader.rate == 16000
        seconds = sum(len(validated.reader.read(u)) for u in validated.utterances) / 16000
        # Each speaker goes on to the end of a phrase.
        speakers = {u.speaker for u in validated.utterances}
        assert 3600 * hours <= seconds < 3600 * hours + 8 * len(speakers)
        lines = (made / part / "spk2voice").read_text().splitlines()
        assert {line.split()[0] for line in lines} == speakers
        variants.append({line.partition("+")[2] for line in lines})
    assert not variants[0] & variants[1]


def test_words_are_where_their_times_say(made: Path) -> None:
    """With hardly any noise it is loud within the times, and quiet outside."""
    timed_word = read_ctm(made / "test" / "words.ctm")
    text = dict(
        line.split(maxsplit=1) for line in (made / "test" / "text").read_text().splitlines()
    )
    assert set(timed_word) == set(text)
    for name, words in timed_word.items():
        assert " ".join(t.word for t in words) == text[name]
        samples, rate = soundfile.read(
            made / "test" / "audio" / name.split("-")[0] / f"{name}.flac"
        )
        assert all(a.end <= b.start + 1e-3 for a, b in pairwise(words))
        first, last = round(words[0].start * rate), round(words[-1].end * rate)
        assert 0.15 * rate <= first + 1 and last + 0.15 * rate <= len(samples) + 1
        outside = np.concatenate([samples[: first - 80], samples[last + round(0.1 * rate) :]])
        assert np.mean(outside**2) < 0.003 * np.mean(samples[first:last] ** 2)
        for t in words:
            own = samples[round(t.start * rate) : round(t.end * rate)]
            assert np.mean(own**2) > 10 * np.mean(outside**2)


def test_noise_has_the_power_and_the_colour_that_it_should(made: Path) -> None:
    random = np.random.default_rng(0)
    for colour in (0.0, 1.0, 2.0):
        noise = synthesis._noise(1 << 16, colour, random)
        assert np.mean(noise**2) == pytest.approx(1)
        power = np.abs(np.fft.rfft(noise)) ** 2
        bands = [power[n : 2 * n].mean() for n in (1024, 2048, 4096, 8192, 16384)]
        slopes = np.diff(np.log2(bands))
        assert slopes == pytest.approx([-colour] * 4, abs=0.15)


def test_espeak_is_never_in_this_process(made: Path) -> None:
    assert "espeakng_loader" not in sys.modules
    assert "espeak" not in Path("/proc/self/maps").read_text()


def test_without_the_extra_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tts, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'unisono\[demo\]'") as caught:
        synthesize(tmp_path / "data", HOW, print)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import sys; sys.exit('no such voice')", "no such voice"),
        ("import os; os.kill(os.getpid(), 11)", "failed"),
        ("import time; time.sleep(600)", "nothing for"),
        ("print('{')", "not understood"),
    ],
)
def test_a_program_that_fails_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, word: str
) -> None:
    command = (sys.executable, "-I", "-c", program)
    monkeypatch.setattr(synthesis, "find_espeak", lambda: (command, ["a", "b"]))
    monkeypatch.setattr(tts, "_TIMEOUT_S", 1)
    with pytest.raises(UserError, match=word) as caught:
        synthesize(tmp_path / "data", HOW, lambda _: None)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_left_alone(made: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        synthesize(made, HOW, print)


@pytest.mark.long
def test_the_same_bytes_with_two_processes_and_others_with_another_seed(
    made: Path, tmp_path: Path
) -> None:
    synthesize(tmp_path / "two", replace(HOW, processes=2), lambda _: None)
    subprocess.run(["diff", "-r", str(made), str(tmp_path / "two")], check=True)
    synthesize(tmp_path / "other", replace(HOW, seed=4), lambda _: None)
    assert (made / "train" / "text").read_text() != (tmp_path / "other/train/text").read_text()
