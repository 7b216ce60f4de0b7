"""Data directories, whole and broken: what is used, what is set aside and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import Reason
from unisono.speech.corpus.lexicon import NOISE, UNKNOWN, Lexicon, Oov
from unisono.speech.features.audio import BadAudioError, Reader
from unisono.speech.validation import Checked, Intake, check_data

Write = Callable[..., Path]

LEXICON = Lexicon(entries={"yes": [("Y", "EH", "S")], "no": [("N", "OW"), ("N", "AH", "OW")]})


def check(folder: Path, **options: object) -> Checked:
    return check_data(folder, Intake(**options), LEXICON)  # type: ignore[arg-type]


def test_relative_paths_segments_and_flac(write: Write) -> None:
    folder = write(
        {
            "wav.scp": "r1 long.flac\nr2 short.wav\n",
            "segments": "u1 r1 0.0 1.0\nu2 r1 1.0 2.5\nu3 r2 0.25 -1\n",
            "text": "u1 yes no\nu2 no\nu3 yes\n",
            "utt2spk": "u1 ann\nu2 ann\nu3 bob\n",
        },
        seconds={"long.flac": 2.5, "short.wav": 1.0},
    )
    checked = check(folder)
    assert [u.id for u in checked.utterances] == ["u1", "u2", "u3"]
    assert [u.speaker for u in checked.utterances] == ["ann", "ann", "bob"]
    whole, _ = soundfile.read(folder / "long.flac", dtype="int16")
    np.testing.assert_array_equal(checked.reader.read(checked.utterances[1]), whole[16000:])
    assert len(checked.reader.read(checked.utterances[2])) == 12000
    assert len(checked.aside) == 0 and checked.aside.summary() == []


def test_each_fault_is_set_aside_by_name(write: Write) -> None:
    in_scp = ["good", "twice", "gone", "torn", "mute", "orphan", "brief", "oov"]
    names = [*in_scp, "pipe", "stereo", "slow", "only"]
    folder = write(
        {
            "wav.scp": "".join(f"{n} {n}.wav\n" for n in in_scp)
            + "pipe cat good.wav |\nstereo stereo.wav\nslow slow.wav\ntwice other.wav\n",
            "text": "".join(f"{n} yes no\n" for n in names if n not in ("mute", "oov"))
            + "mute\noov yes maybe\n",
            "utt2spk": "".join(f"{n} ann\n" for n in names if n != "orphan"),
        },
        seconds={f"{n}.wav": 1.0 for n in ("good", "twice", "mute", "orphan", "oov", "other")}
        | {"brief.wav": 0.14},
    )
    (folder / "torn.wav").write_bytes(b"RIFF....WAVEfmt ")
    soundfile.write(folder / "slow.wav", np.zeros(8000), 8000)
    soundfile.write(folder / "stereo.wav", np.zeros((16000, 2)), 16000)
    checked = check(folder, channel=0, oov=Oov.SKIP)
    assert [u.id for u in checked.utterances] == ["good", "stereo"]
    expected = {
        Reason.DUPLICATE: 1,
        Reason.NO_AUDIO: 2,
        Reason.UNREADABLE: 1,
        Reason.NO_TEXT: 1,
        Reason.NO_SPEAKER: 1,
        Reason.TOO_SHORT: 1,
        Reason.UNKNOWN_WORD: 1,
        Reason.PIPE: 1,
        Reason.RATE: 1,
    }
    assert {reason: checked.aside.count(reason) for reason in expected} == expected
    assert sum(expected.values()) == len(checked.aside)
    text = "\n".join(checked.aside.summary())
    assert "maybe (1)" in text and "brief" in text
    checked.aside.write(folder / "aside.txt")
    told = {line.split("\t")[0] for line in (folder / "aside.txt").read_text().splitlines()}
    assert told == {*names, "#word"} - {"good", "stereo"}


def test_what_was_refused_can_be_asked_for(write: Write) -> None:
    folder = write(
        {
            "wav.scp": "a a.wav\nb cat FOLDER/a.wav |\nc c.wav\n",
            "text": "a yes\nb yes\nc maybe\n",
            "utt2spk": "a x\nb x\nc y\n",
        },
        seconds={"a.wav": 1.0},
    )
    scp = folder / "wav.scp"
    scp.write_text(scp.read_text().replace("FOLDER", str(folder)))
    tone = np.sin(2 * np.pi * 440 * np.arange(22050) / 22050) / 2
    soundfile.write(folder / "c.wav", np.stack([0 * tone, tone], 1), 22050)
    checked = check(folder, rate=16000, allow_pipes=True, resample=True)
    assert [u.id for u in checked.utterances] == ["a", "b", "c"]
    assert checked.utterances[2].words == (UNKNOWN,)
    read = checked.reader.read
    np.testing.assert_array_equal(read(checked.utterances[0]), read(checked.utterances[1]))
    second = read(replace(checked.utterances[2], channel=1))
    wanted = 16384 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(second - wanted)[200:-200].max() < 20
    with pytest.raises(BadAudioError, match="channels"):
        read(replace(checked.utterances[0], channel=1))


def test_words_without_pronunciation_are_trained_as_unknown_and_told(write: Write) -> None:
    names = ["a", "b", "c", "brief"]
    folder = write(
        {
            "wav.scp": "".join(f"{n} {n}.wav\n" for n in names),
            "text": "a yes no\nb maybe yes perhaps\nc maybe\nbrief maybe yes yes yes\n",
            "utt2spk": "".join(f"{n} s\n" for n in names),
        },
        seconds={"a.wav": 1.0, "b.wav": 36.015, "c.wav": 72.015, "brief.wav": 0.1},
    )
    checked = check(folder)
    assert {u.id: u.words for u in checked.utterances} == {
        "a": ("yes", "no"),
        "b": (UNKNOWN, "yes", UNKNOWN),
        "c": (UNKNOWN,),
    }
    assert checked.lexicon is not None and checked.lexicon.entries[UNKNOWN] == [(NOISE,)]
    line = checked.out_of_vocabulary
    # 36 s and 72 s are 0.03 h; what is too short to be used does not count.
    assert "3 of 6 words, in 2 of 3 utterances (0.03 h)" in line and "--oov skip" in line
    assert any("maybe (3)" in line for line in checked.aside.summary())
    skipped = check(folder, oov=Oov.SKIP)
    assert [u.id for u in skipped.utterances] == ["a"]
    assert skipped.aside.count(Reason.UNKNOWN_WORD) == 3 and skipped.out_of_vocabulary == ""
    assert skipped.lexicon == LEXICON


def test_float_audio_keeps_its_scale(tmp_path: Path) -> None:
    path = tmp_path / "f.wav"
    soundfile.write(path, np.full(16000, 0.5), 16000, subtype="FLOAT")
    utterance = Utterance(id="f", speaker="s", words=(), recording="f", audio=str(path))
    np.testing.assert_array_equal(Reader(rate=16000).read(utterance), 16384.0)


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({}, "wav.scp"),
        ({"wav.scp": "a a.wav\n"}, "utt2spk"),
        ({"wav.scp": "a a.wav\n", "utt2spk": "a s\n"}, "text"),
        ({"wav.scp": "", "utt2spk": "", "text": ""}, "no usable utterance"),
        ({"wav.scp": "a a.wav\n", "utt2spk": "a s\n", "text": "a yes\n"}, "no audio"),
        ({"wav.scp": "a \0\n", "utt2spk": "a s\n", "text": "a yes\n"}, "zero byte"),
    ],
)
def test_a_directory_that_cannot_be_used_is_one_line(
    write: Write, files: dict[str, str], word: str
) -> None:
    with pytest.raises(UserError, match=word) as caught:
        check(write(files, seconds={}))
    assert "\n" not in str(caught.value)


@given(
    which=st.sampled_from(["wav.scp", "segments", "text", "utt2spk", "lexicon.txt", "a.wav"]),
    noise=st.binary(max_size=60),
    at=st.integers(0, 60),
)
@example(which="wav.scp", noise=b"\x1c", at=8)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_noise_in_any_file_is_an_error_or_a_set_aside_utterance(
    write: Write, which: str, noise: bytes, at: int
) -> None:
    folder = write(
        {
            "wav.scp": "a a.wav\n",
            "segments": "u1 a 0 0.5\nu2 a 0.5 1.0\n",
            "text": "u1 yes no\nu2 no\n",
            "utt2spk": "u1 s\nu2 s\n",
            "lexicon.txt": "yes Y EH S\nno N OW\n",
        },
        seconds={"a.wav": 1.0},
    )
    data = (folder / which).read_bytes()
    (folder / which).write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        checked = check_data(folder, Intake(), Lexicon.read(folder / "lexicon.txt"))
        for utterance in checked.utterances:
            try:
                assert np.isfinite(checked.reader.read(utterance)).all()
            except BadAudioError as bad:
                assert bad.detail
    except UserError as error:
        assert "\n" not in str(error)


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
