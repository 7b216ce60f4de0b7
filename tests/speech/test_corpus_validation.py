"""Data directories, whole and broken: what is used, what is excluded and why."""

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
from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import build_transcript_graph, estimate_nodes
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason, Exclusions
from unisono.speech.corpus.lexicon import NOISE, UNKNOWN, Lexicon, Oov
from unisono.speech.features.audio import AudioReader, UtteranceError
from unisono.speech.validation import InputOptions, ValidatedCorpus, alignable, validate_data

Write = Callable[..., Path]

LEXICON = Lexicon(entries={"yes": [("Y", "EH", "S")], "no": [("N", "OW"), ("N", "AH", "OW")]})


def check(folder: Path, **options: object) -> ValidatedCorpus:
    return validate_data(folder, InputOptions(**options), LEXICON)  # type: ignore[arg-type]


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
    validated = check(folder)
    assert [u.id for u in validated.utterances] == ["u1", "u2", "u3"]
    assert [u.speaker for u in validated.utterances] == ["ann", "ann", "bob"]
    whole, _ = soundfile.read(folder / "long.flac", dtype="int16")
    np.testing.assert_array_equal(validated.reader.read(validated.utterances[1]), whole[16000:])
    assert len(validated.reader.read(validated.utterances[2])) == 12000
    assert len(validated.exclusions) == 0 and validated.exclusions.summary() == []


def test_each_fault_is_excluded_by_name(write: Write) -> None:
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
    validated = check(folder, channel=0, oov=Oov.SKIP)
    assert [u.id for u in validated.utterances] == ["good", "stereo"]
    expected = {
        ExclusionReason.DUPLICATE: 1,
        ExclusionReason.NO_AUDIO: 2,
        ExclusionReason.UNREADABLE: 1,
        ExclusionReason.NO_TEXT: 1,
        ExclusionReason.NO_SPEAKER: 1,
        ExclusionReason.TOO_SHORT: 1,
        ExclusionReason.UNKNOWN_WORD: 1,
        ExclusionReason.PIPE: 1,
        ExclusionReason.RATE: 1,
    }
    assert {reason: validated.exclusions.count(reason) for reason in expected} == expected
    assert sum(expected.values()) == len(validated.exclusions)
    text = "\n".join(validated.exclusions.summary())
    assert "maybe (1)" in text and "brief" in text
    validated.exclusions.write(folder / "excluded.txt")
    told = {line.split("\t")[0] for line in (folder / "excluded.txt").read_text().splitlines()}
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
    validated = check(folder, rate=16000, allow_pipes=True, resample=True)
    assert [u.id for u in validated.utterances] == ["a", "b", "c"]
    assert validated.utterances[2].words == (UNKNOWN,)
    read = validated.reader.read
    np.testing.assert_array_equal(read(validated.utterances[0]), read(validated.utterances[1]))
    second = read(replace(validated.utterances[2], channel=1))
    wanted = 16384 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(second - wanted)[200:-200].max() < 20
    with pytest.raises(UtteranceError, match="channels"):
        read(replace(validated.utterances[0], channel=1))


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
    validated = check(folder)
    assert {u.id: u.words for u in validated.utterances} == {
        "a": ("yes", "no"),
        "b": (UNKNOWN, "yes", UNKNOWN),
        "c": (UNKNOWN,),
    }
    assert validated.lexicon is not None and validated.lexicon.entries[UNKNOWN] == [(NOISE,)]
    line = validated.out_of_vocabulary
    # 36 s and 72 s are 0.03 h; what is too short to be used does not count.
    assert "3 of 6 words, in 2 of 3 utterances (0.03 h)" in line and "--oov skip" in line
    assert any("maybe (3)" in line for line in validated.exclusions.summary())
    skipped = check(folder, oov=Oov.SKIP)
    assert [u.id for u in skipped.utterances] == ["a"]
    assert (
        skipped.exclusions.count(ExclusionReason.UNKNOWN_WORD) == 3
        and skipped.out_of_vocabulary == ""
    )
    assert skipped.lexicon == LEXICON


def test_float_audio_keeps_its_scale(tmp_path: Path) -> None:
    path = tmp_path / "f.wav"
    soundfile.write(path, np.full(16000, 0.5), 16000, subtype="FLOAT")
    utterance = Utterance(id="f", speaker="s", words=(), recording="f", audio=str(path))
    np.testing.assert_array_equal(AudioReader(rate=16000).read(utterance), 16384.0)


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
def test_noise_in_any_file_is_an_error_or_an_excluded_utterance(
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
        validated = validate_data(folder, InputOptions(), Lexicon.read(folder / "lexicon.txt"))
        for utterance in validated.utterances:
            try:
                assert np.isfinite(validated.reader.read(utterance)).all()
            except UtteranceError as bad:
                assert bad.detail
    except UserError as error:
        assert "\n" not in str(error)


def test_segments_may_name_the_channel(write: Write) -> None:
    folder = write(
        {
            "wav.scp": "call call.wav\n",
            "segments": "a call 0.0 0.5 0\nb call 0.0 0.5 1\nc call 0.5 -1\nd call 0 1 2\n"
            "e call 0 1 x\nf call 0 1 -1\ng call 0.75 1.4\nh call 0.75 1.6\n",
            "utt2spk": "".join(f"{name} {name}\n" for name in "abcdefgh"),
        },
        seconds={},
    )
    sides = np.stack([np.full(16000, 0.25), np.full(16000, 0.5)], axis=1)
    soundfile.write(folder / "call.wav", sides, 16000)
    validated = validate_data(folder, InputOptions(channel=1), None)
    extracted = {u.id: validated.reader.read(u) for u in validated.utterances}
    assert {name: set(samples) for name, samples in extracted.items()} == {
        "a": {8192.0},
        "b": {16384.0},
        "c": {16384.0},  # names none: --channel
        "g": {16384.0},  # ends where the recording ends
    }
    assert len(extracted["g"]) == 4000
    assert validated.exclusions.count(ExclusionReason.CHANNEL) == 1
    assert validated.exclusions.count(ExclusionReason.SEGMENT) == 3


def test_commands_alone_tell_their_rate_and_run_once_for_all_segments(write: Write) -> None:
    folder = write(
        {
            "utt2spk": "a s\nb s\nc s\n",
            "segments": "a r 0 1\nb r 1 2\nc r 2 3\n",
            "text": "a x\nb\n",
        },
        seconds={"r.wav": 3.0},
        rate=11025,
    )
    command = f"cd {folder}; echo >> runs; cat r.wav |"
    (folder / "wav.scp").write_text(f"broken false |\nr {command}\n")
    validated = validate_data(folder, InputOptions(allow_pipes=True), None)
    whole = np.concatenate([validated.reader.read(u) for u in validated.utterances])
    samples, rate = soundfile.read(folder / "r.wav", dtype="int16")
    assert rate == 11025
    np.testing.assert_array_equal(whole, samples)
    assert (folder / "runs").read_text() == "\n"
    # Nothing may have been said: that is a transcript, too, and is scored.
    assert [u.transcribed for u in validated.utterances] == [True, True, False]


def test_a_command_that_fails_tells_why(write: Write) -> None:
    scp = "a no-such-tool -p a.wv1 |\nb cat |\n"
    folder = write({"wav.scp": scp, "utt2spk": "a s\nb s\n"}, seconds={})
    with pytest.raises(UserError, match="write no audio"):
        validate_data(folder, InputOptions(allow_pipes=True), None)
    validated = validate_data(folder, InputOptions(allow_pipes=True, rate=16000), None)
    with pytest.raises(UtteranceError, match="not found"):
        validated.reader.read(validated.utterances[0])
    with pytest.raises(UtteranceError):  # at once: nobody is asked to type the audio in
        validated.reader.read(validated.utterances[1])


def test_what_is_missing_is_said_with_what_to_do(write: Write) -> None:
    folder = write({"wav.scp": "a a.wav\n", "text": "a x\n"}, seconds={"a.wav": 0.0})
    with pytest.raises(UserError, match="utt2spk: write one line per utterance"):
        validate_data(folder, InputOptions(), None)
    (folder / "utt2spk").write_text("a s\n")
    with pytest.raises(UserError, match=r"audio that cannot be read: a \(a: it holds no samples"):
        validate_data(folder, InputOptions(), None)
    (folder / "wav.scp").write_text("a corpus/a.wav\n")  # from where it would be elsewhere
    with pytest.raises(UserError, match=f"there is no file {folder}/corpus/a.wav"):
        validate_data(folder, InputOptions(), None)


@pytest.mark.parametrize(("word", "known"), [("YES", "yes"), ("re\u0301", "r\u00e9")])
def test_words_written_in_another_form_are_told(write: Write, word: str, known: str) -> None:
    files = {"wav.scp": "a a.wav\n", "text": f"a {word} oh\n", "utt2spk": "a s\n"}
    folder = write(files, seconds={"a.wav": 1.0})
    lexicon = Lexicon(entries={known: [("Y",)], "no": [("N",)]})
    with pytest.raises(UserError, match="1 of them are in the lexicon in another form") as caught:
        validate_data(folder, InputOptions(oov=Oov.SKIP), lexicon)
    assert ascii(word) in str(caught.value) and ascii(known) in str(caught.value)
    (line,) = (
        s
        for s in validate_data(folder, InputOptions(), lexicon).exclusions.summary()
        if "form" in s
    )
    assert ascii(word) in line and ascii(known) in line


def test_utterances_too_long_for_memory_are_excluded() -> None:
    exclusions = Exclusions()
    hour = Utterance(id="hour", speaker="s", words=("yes",) * 9000, recording="r", audio="r.wav")
    assert not alignable(hour, 360_000, LEXICON, exclusions)
    assert exclusions.count(ExclusionReason.TOO_LONG) == 1
    assert alignable(hour, 360_000, None, exclusions)  # to be decoded, not aligned
    topology = Topology.initial(LEXICON.phones)
    words = ("yes", "no", "no")
    graph = build_transcript_graph(words, LEXICON, topology, StateTying.monophone(topology))
    assert estimate_nodes(words, LEXICON) == pytest.approx(len(graph.state), rel=0.3)
