"""Any damage to any input: one clear line or utterances set aside, no traceback, no hang."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from mutations import damaged_audio, damaged_text
from tones import write_tones

from unisono.errors import UserError
from unisono.speech.alignment.state_tying import Tying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import lay_paths
from unisono.speech.corpus.lexicon import Lexicon, Oov
from unisono.speech.features.audio import probe
from unisono.speech.features.extraction import hear
from unisono.speech.features.extractors import Features
from unisono.speech.graph.decoding_graph import Ingredients, build_graph
from unisono.speech.graph.language_model import estimate, read_arpa, read_language
from unisono.speech.validation import Intake, check_data

pytest.importorskip("kaldifst", reason="the speech extra is not installed")

TEXTS = ("wav.scp", "segments", "text", "utt2spk", "lexicon.txt", "lm.arpa")
SOUNDS = ("a.flac", "b.ogg", "c.wav")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with audio in three formats, a lexicon and a language model."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    write_tones(folder, speakers=2, utterances=3, seed=1)
    names = [line.split()[0] for line in (folder / "wav.scp").read_text().splitlines()]
    audio = [f"{name}.wav" for name in names]
    for n, file in enumerate(SOUNDS):
        samples, rate = soundfile.read(folder / audio[n])
        soundfile.write(folder / file, samples, rate)
        audio[n] = file
    pairs = list(zip(names, audio, strict=True))
    (folder / "wav.scp").write_text("".join(f"{name} {file}\n" for name, file in pairs))
    (folder / "segments").write_text("".join(f"{name} {name} 0.0 1.2\n" for name in names))
    lexicon = Lexicon.read(folder / "lexicon.txt")
    said = [line.split()[1:] for line in (folder / "text").read_text().splitlines()]
    estimate(said, lexicon.words, 3).write(folder / "lm.arpa")
    return folder


def use(folder: Path, oov: Oov, resample: bool) -> None:
    """Does with a data directory what `prepare` and `decode` do, but for the learning."""
    probe.cache_clear()
    lexicon = Lexicon.read(folder / "lexicon.txt")
    checked = check_data(folder, Intake(oov=oov, resample=resample), lexicon)
    lexicon = checked.lexicon or lexicon
    one_line(checked.out_of_vocabulary)
    language = read_language(folder / "lm.arpa", lexicon.words, one_line)
    heard = hear(
        checked.utterances,
        checked.reader,
        Features.FBANK,
        checked.aside,
        processes=1,
        say=one_line,
        scratch=folder,
    )
    topology = Topology.start(lexicon.phones)
    tying = Tying.none(topology)
    for utterance, features in heard:
        lay_paths(utterance.words, lexicon, topology, tying)
        assert np.isfinite(features.network).all() and np.isfinite(features.cepstra).all()
    for line in checked.aside.summary():
        one_line(line)
    checked.aside.write(folder / "set_aside.txt")
    graph = build_graph(
        Ingredients(lexicon=lexicon, language=language, topology=topology, tying=tying, silence=0.5)
    )
    assert np.isfinite(graph.weight).all() and np.isfinite(graph.final).any()


def one_line(text: str) -> None:
    assert "\n" not in text


def damage(whole: Path, folder: Path, seed: int) -> str:
    """Damages one file of a copy; returns which."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    if draw.random() < 0.4:
        (folder / "segments").unlink()
    file = draw.choice([f for f in (*TEXTS, *SOUNDS) if (folder / f).exists()])
    data = (folder / file).read_bytes()
    for _ in range(draw.choice((1, 1, 1, 3))):
        hurt = damaged_audio if file in SOUNDS else damaged_text
        data = hurt(data, draw) if data else data
    (folder / file).write_bytes(data)
    try:
        use(folder, draw.choice(list(Oov)), draw.random() < 0.3)
    except UserError as error:
        one_line(str(error))
        return "refused"
    return "used"


def test_damage_is_told_or_set_aside(whole: Path, tmp_path: Path) -> None:
    outcomes = {damage(whole, tmp_path / "data", seed) for seed in range(30)}
    assert outcomes == {"refused", "used"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_much_more_damage_is_told_or_set_aside(whole: Path, tmp_path: Path) -> None:
    for seed in range(1000, 4000):
        damage(whole, tmp_path / "data", seed)


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
    language = read_language(file, ["io", "uya"], lines.append)
    assert set(language.tables[0]) == {("<s>",), ("</s>",), ("io",)}
    assert len(lines) == 1 and "4 words" in lines[0] and "w, x, y, ..." in lines[0]
    lines.clear()
    read_language(file, words, lines.append)
    assert lines == []


def test_times_beyond_all_numbers_of_samples(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    names = [line.split()[0] for line in (folder / "wav.scp").read_text().splitlines()]
    times = ["0 1e308", "1e308 -1", "1e307 1e308", "0 1.0", "nan 1", "1 1"]
    pairs = zip(names, times, strict=True)
    (folder / "segments").write_text("".join(f"{name} {name} {t}\n" for name, t in pairs))
    checked = check_data(folder, Intake(), Lexicon.read(folder / "lexicon.txt"))
    assert [u.id for u in checked.utterances] == [names[3]]


def test_a_rate_that_no_audio_has(whole: Path, tmp_path: Path) -> None:
    """Also where as many headers say it as say the true one."""
    folder = shutil.copytree(whole, tmp_path / "data")
    (folder / "segments").unlink()
    lines = (folder / "wav.scp").read_text().splitlines()[2:4]
    (folder / "wav.scp").write_text("\n".join(lines))
    file = folder / lines[0].split()[1]
    data = bytearray(file.read_bytes())
    data[24:28] = (2_000_000_000).to_bytes(4, "little")
    file.write_bytes(data)
    probe.cache_clear()
    checked = check_data(folder, Intake(), Lexicon.read(folder / "lexicon.txt"))
    assert [u.id for u in checked.utterances] == [lines[1].split()[0]]
    assert checked.reader.rate == 8000
