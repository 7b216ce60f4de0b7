"""What data directories, lexicons and language models of Kaldi's users look like."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tones import write_tones

from unisono.data import Corpus, Part, write_prep
from unisono.errors import UserError
from unisono.speech.alignment.state_tying import Tying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.trainer import Aligned
from unisono.speech.alignment.word_times import timed_words
from unisono.speech.corpus.exclusions import Reason
from unisono.speech.corpus.lexicon import NOISE, SILENCE, UNKNOWN, Lexicon, Oov
from unisono.speech.decoding.assets import Kit
from unisono.speech.decoding.scoring import score
from unisono.speech.export import export
from unisono.speech.features.audio import BadAudioError
from unisono.speech.features.extractors import cepstra_of, fbank, mfcc
from unisono.speech.features.kaldi_archives import Pointer, read_matrix, write_archive
from unisono.speech.features.kaldi_features import Stored
from unisono.speech.features.spectrum import frame_shift
from unisono.speech.features.transforms import add_deltas
from unisono.speech.graph.decoding_graph import Ingredients, build_graph
from unisono.speech.graph.language_model import BEGIN, END, Ngrams, estimate, read_arpa
from unisono.speech.prepare import Preparation, Tie, prepare
from unisono.speech.validation import Intake, check_data

Write = Callable[..., Path]


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
    checked = check_data(folder, Intake(channel=1), None)
    heard = {u.id: checked.reader.read(u) for u in checked.utterances}
    assert {name: set(samples) for name, samples in heard.items()} == {
        "a": {8192.0},
        "b": {16384.0},
        "c": {16384.0},  # names none: --channel
        "g": {16384.0},  # ends where the recording ends
    }
    assert len(heard["g"]) == 4000
    assert checked.aside.count(Reason.CHANNEL) == 1
    assert checked.aside.count(Reason.SEGMENT) == 3


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
    checked = check_data(folder, Intake(allow_pipes=True), None)
    whole = np.concatenate([checked.reader.read(u) for u in checked.utterances])
    samples, rate = soundfile.read(folder / "r.wav", dtype="int16")
    assert rate == 11025
    np.testing.assert_array_equal(whole, samples)
    assert (folder / "runs").read_text() == "\n"
    # Nothing may have been said: that is a transcript, too, and is scored.
    assert [u.transcribed for u in checked.utterances] == [True, True, False]


def test_a_command_that_fails_tells_why(write: Write) -> None:
    scp = "a no-such-tool -p a.wv1 |\nb cat |\n"
    folder = write({"wav.scp": scp, "utt2spk": "a s\nb s\n"}, seconds={})
    with pytest.raises(UserError, match="write no audio"):
        check_data(folder, Intake(allow_pipes=True), None)
    checked = check_data(folder, Intake(allow_pipes=True, rate=16000), None)
    with pytest.raises(BadAudioError, match="not found"):
        checked.reader.read(checked.utterances[0])
    with pytest.raises(BadAudioError):  # at once: nobody is asked to type the audio in
        checked.reader.read(checked.utterances[1])


def test_what_is_missing_is_said_with_what_to_do(write: Write) -> None:
    folder = write({"wav.scp": "a a.wav\n", "text": "a x\n"}, seconds={"a.wav": 0.0})
    with pytest.raises(UserError, match="utt2spk: write a line an utterance"):
        check_data(folder, Intake(), None)
    (folder / "utt2spk").write_text("a s\n")
    with pytest.raises(UserError, match=r"audio that cannot be read: a \(a: it holds no samples"):
        check_data(folder, Intake(), None)
    (folder / "wav.scp").write_text("a corpus/a.wav\n")  # from where it would be elsewhere
    with pytest.raises(UserError, match=f"there is no file {folder}/corpus/a.wav"):
        check_data(folder, Intake(), None)


def test_lexicons_with_probabilities(tmp_path: Path) -> None:
    file = tmp_path / "lexiconp.txt"
    file.write_text("the 1.0 DH AH\nthe 0.25 DH IY\na 1 AH\n!SIL 1.0 sil\n")
    lexicon = Lexicon.read(file)
    assert lexicon.entries["the"] == [("DH", "AH"), ("DH", "IY")]
    assert lexicon.phones == [SILENCE, "AH", "DH", "IY"]
    assert lexicon.spoken == {"the", "a"}
    lexicon.with_unknown().write(tmp_path / "again.txt")
    assert Lexicon.read(tmp_path / "again.txt") == lexicon.with_unknown()
    rows = file.read_text().replace("1.0 ", "1.0 0.2 1.1 1 ").replace("0.25 ", "0.25 0.3 1.6 0 ")
    file.write_text(rows.replace("a 1 ", "a 1 0.5 1 1.5 "))
    assert Lexicon.read(file) == lexicon
    file.write_text("".join(f"w{n} w{n} A B\n" for n in range(20_000)))  # align_lexicon.txt
    with pytest.raises(UserError, match="20003 different phones"):
        Lexicon.read(file)
    file.write_text("one 1 UW\ntwo T UW\n")  # a phone that looks like a number
    assert Lexicon.read(file).entries["one"] == [("1", "UW")]


def test_a_rare_pronunciation_costs_more_in_the_graph(tmp_path: Path) -> None:
    file = tmp_path / "lexiconp.txt"
    file.write_text("a 1.0 X\na 0.125 Y\n")

    def cheapest(phone: str) -> float:
        """The cost of the way from the start into a phone's first state."""
        lexicon = Lexicon.read(file)
        topology = Topology.start(lexicon.phones)
        machine = build_graph(
            Ingredients(
                lexicon=lexicon,
                language=estimate([("a",)], ["a"], 1),
                topology=topology,
                tying=Tying.none(topology),
                silence=0.5,
            )
        )
        reached = {machine.start: 0.0}
        for _ in range(len(machine.final)):
            for source, target, label, weight in zip(
                machine.source.tolist(),
                machine.target.tolist(),
                machine.input.tolist(),
                machine.weight.tolist(),
                strict=True,
            ):
                if label == 0 and source in reached:
                    cost = reached[source] + weight
                    reached[target] = min(cost, reached.get(target, np.inf))
        wanted = int(topology.first[lexicon.phones.index(phone)]) + 1
        arcs = zip(machine.source.tolist(), machine.input, machine.weight, strict=True)
        return min(
            reached[source] + float(weight)
            for source, label, weight in arcs
            if label == wanted and source in reached
        )

    assert cheapest("Y") - cheapest("X") == pytest.approx(np.log(8), abs=1e-3)


@pytest.mark.parametrize(("word", "known"), [("YES", "yes"), ("re\u0301", "r\u00e9")])
def test_words_written_in_another_form_are_told(write: Write, word: str, known: str) -> None:
    files = {"wav.scp": "a a.wav\n", "text": f"a {word} oh\n", "utt2spk": "a s\n"}
    folder = write(files, seconds={"a.wav": 1.0})
    lexicon = Lexicon(entries={known: [("Y",)], "no": [("N",)]})
    with pytest.raises(UserError, match="1 of them are in the lexicon in another form") as caught:
        check_data(folder, Intake(oov=Oov.SKIP), lexicon)
    assert ascii(word) in str(caught.value) and ascii(known) in str(caught.value)
    (line,) = (s for s in check_data(folder, Intake(), lexicon).aside.summary() if "form" in s)
    assert ascii(word) in line and ascii(known) in line


def test_the_lexicons_own_word_for_what_it_lacks() -> None:
    plain = Lexicon(entries={"a": [("A",)]})
    assert plain.with_unknown().entries[UNKNOWN] == [(NOISE,)]
    own = Lexicon(entries={"a": [("A",)], "<UNK>": [("GBG",)]})
    assert own.with_unknown().unknown == "<UNK>" and own.with_unknown().entries == own.entries


def test_packed_language_models(tmp_path: Path) -> None:
    model = estimate([("a", "b"), ("b",)], ["a", "b"], 2)
    model.write(tmp_path / "lm.arpa")
    packed = gzip.compress((tmp_path / "lm.arpa").read_bytes())
    (tmp_path / "lm.arpa.gz").write_bytes(packed)
    read: Ngrams = read_arpa(tmp_path / "lm.arpa.gz")
    assert read.tables == read_arpa(tmp_path / "lm.arpa").tables
    for broken in (packed[:-20], packed[:30] + bytes(20) + packed[50:]):
        (tmp_path / "lm.arpa.gz").write_bytes(broken)
        with pytest.raises(UserError, match="cannot unpack"):
            read_arpa(tmp_path / "lm.arpa.gz")


def test_frames_of_22050_hz_are_not_10_ms_apart() -> None:
    # A shift of 10 ms is 220.5 samples there; frames are 220 samples apart, as Kaldi's.
    path = Aligned(states=np.zeros(2001, dtype=np.int64), words=np.repeat([-1, 0], [2000, 1]))
    (found,) = timed_words(("a",), path, frame_shift(22050))
    assert found.start == pytest.approx(2000 * 220 / 22050 + 0.0075)
    assert frame_shift(16000) == 0.01


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


def test_features_of_others_are_taken_for_what_they_are(tmp_path: Path) -> None:
    write_tones(tmp_path / "audio", speakers=2, utterances=2, seed=3)
    heard = {}
    for file in sorted((tmp_path / "audio").glob("*.wav")):
        samples, rate = soundfile.read(file, dtype="int16")
        heard[file.stem] = samples.astype(np.float64), rate
    kinds: dict[str, Callable[..., Any]] = {
        "bands": lambda x, rate: fbank(x, rate),
        "hires": lambda x, rate: mfcc(x, rate, ceps=40, bands=40, energy=False),
        "differences": lambda x, rate: add_deltas(mfcc(x, rate)),
        "plain": lambda x, rate: mfcc(x, rate),
    }
    for name, make in kinds.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "utt2spk").write_text((tmp_path / "audio" / "utt2spk").read_text())
        matrices = {key: make(*audio).astype(np.float32) for key, audio in heard.items()}
        write_archive(folder / "feats.ark", folder / "feats.scp", matrices.items())
        reader = check_data(folder, Intake(), None, stored=True).reader
        assert isinstance(reader, Stored)
        assert reader.bands == (name == "bands")
        for key, matrix in matrices.items():
            found = cepstra_of(matrix, bands=reader.bands)
            assert found.shape[1] == 13
            if not reader.bands:
                np.testing.assert_array_equal(found, matrix[:, :13])
            else:
                # Liftering and C0 aside, cepstra of 40 bands are the cosine transform of them.
                lifter = 1 + 11 * np.sin(np.pi * np.arange(13) / 22)
                wanted = mfcc(*heard[key], bands=40, energy=False) / lifter
                np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_archives_are_sorted_as_kaldi_wants_them(tmp_path: Path) -> None:
    corpus = Corpus(
        origin="noise",
        frames=np.arange(6, dtype=np.float32).reshape(3, 2),
        states=np.array([0, 1, 2]),
        starts=np.array([0, 1, 3]),
        utterances=["x", "sp0.9-x"],  # copies at other speeds come last in a PREP
        speakers=["s", "sp0.9-s"],
        parts=[Part.TRAIN, Part.TRAIN],
        state_count=3,
    )
    export(write_prep(tmp_path / "prep", corpus, {}), tmp_path / "out")
    for name in ("feats.scp", "ali.scp", "utt2spk"):
        lines = (tmp_path / "out" / name).read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["sp0.9-x", "x"]
    (first, _) = (tmp_path / "out" / "feats.scp").read_text().splitlines()
    np.testing.assert_array_equal(read_matrix(Pointer.of(first.split()[1])), [[2, 3], [4, 5]])


def test_phones_that_nobody_says_are_never_found(tmp_path: Path) -> None:
    write_tones(tmp_path / "data", speakers=3, utterances=4, seed=4)
    lexicon = tmp_path / "data" / "lexicon.txt"
    strange = "qa Q A\naeo Q\n!SIL SIL\n<unk> SPN\n"  # a word, another way to say one, noise
    lexicon.write_text(lexicon.read_text() + strange)
    lines: list[str] = []
    how = Preparation(heldout=0.3, gaussians=30, tying=Tie.NONE)
    kit = Kit.read(prepare(tmp_path / "data", lexicon, tmp_path / "p", how, lines.append).path)
    assert kit.lexicon.entries["aeo"] == [("A", "E", "O")]
    assert set(kit.lexicon.entries) == {"aeo", "uya", "io", "yeu", "!SIL"}
    assert {word for (word,) in kit.language.tables[0]} == {"aeo", "uya", "io", "yeu", BEGIN, END}
    assert "Q" in kit.acoustic.topology.phones  # the states of the PREP stay as they are
    assert any("2 words cannot be found, as <unk>" in line for line in lines)
