"""Recognition in another program gives the words that `unisono decode` gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

import soundfile

import unisono
from support.tones import write_tones
from unisono.config import load
from unisono.speech.prepare import PrepareOptions, prepare
from unisono.training.decode import DecodeOptions, decode
from unisono.training.train import train


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speech of tones, a PREP and a run."""
    place = tmp_path_factory.mktemp("tones")
    write_tones(place / "train", speakers=4, utterances=4, seed=1)
    write_tones(place / "test", speakers=2, utterances=6, seed=2)
    lexicon = place / "train" / "lexicon.txt"
    how = PrepareOptions(heldout=0.25, gaussians=60)
    prepare(place / "train", lexicon, place / "prep", how, lambda _: None)
    quick = ["minibatch=128", "network.hidden=[64]", "epochs=4"]
    train(load(None, quick, {"prep": str(place / "prep")}), place / "run")
    return place


def speakers_of(data: Path) -> dict[str, list[tuple[str, Path]]]:
    """Utterances and their files, by speaker."""
    speakers = dict(line.split() for line in (data / "utt2spk").read_text().splitlines())
    found: dict[str, list[tuple[str, Path]]] = {}
    for line in (data / "wav.scp").read_text().splitlines():
        name, path = line.split(maxsplit=1)
        found.setdefault(speakers[name], []).append((name, data / path))
    return found


@pytest.mark.parametrize("model", ["prep", "run"])
def test_words_are_those_of_decode(place: Path, tmp_path: Path, model: str) -> None:
    decode(place / model, place / "test", tmp_path / "out", DecodeOptions(), lambda _: None)
    lines = (tmp_path / "out" / "hyp.txt").read_text().splitlines()
    decoded = {name: tuple(words) for name, *words in map(str.split, lines)}
    found = {}
    with unisono.Recognizer(place / model) as recognizer:
        for utterances in speakers_of(place / "test").values():
            words = recognizer.recognize_speaker([path for _, path in utterances])
            found.update(zip((name for name, _ in utterances), words, strict=True))
    assert found == decoded


def test_samples_are_as_good_as_a_file(place: Path, tmp_path: Path) -> None:
    ((_, path), *_) = next(iter(speakers_of(place / "test").values()))
    samples, rate = soundfile.read(path)
    other = tmp_path / "other.wav"
    soundfile.write(other, np.repeat(samples, 2), 2 * rate)
    with unisono.Recognizer(str(place / "run")) as recognizer:
        assert recognizer.rate == rate
        words = recognizer.recognize(path)
        assert words and recognizer.recognize(samples) == words
        assert len(recognizer.recognize(other)) == len(words), "audio of another rate is converted"


def test_bad_audio_is_one_line(place: Path, tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no audio")
    with unisono.Recognizer(place / "run") as recognizer:
        for audio, what in (
            (tmp_path / "nowhere.wav", "nowhere.wav"),
            (tmp_path / "text.wav", "text.wav"),
            (np.zeros(10), "too short"),
            (np.zeros((10, 2)), "one dimension"),
            (np.full(9000, np.nan), "finite"),
            ([tmp_path / "text.wav"], "finite numbers"),
            (["text.wav"], "finite numbers"),
            (b"RIFF", "finite numbers"),
            ([[0.5], [0.5, 0.5]], "finite numbers"),
        ):
            with pytest.raises(unisono.UserError, match=what) as caught:
                recognizer.recognize(audio)
            assert "\n" not in str(caught.value)
    with pytest.raises(unisono.UserError, match="closed"):
        recognizer.recognize(np.zeros(9000))


def test_a_run_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(unisono.UserError):
        unisono.Recognizer(tmp_path)
