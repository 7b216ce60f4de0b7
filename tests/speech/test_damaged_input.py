"""Any damage to any input: one clear line or excluded utterances, no traceback, no hang."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from support.mutations import damaged_bytes, damaged_text
from support.tones import write_tones
from unisono.errors import UserError
from unisono.speech.alignment.decision_tree import StateTying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.transcript_graph import build_transcript_graph
from unisono.speech.corpus.lexicon import Lexicon, Oov
from unisono.speech.features.audio import probe
from unisono.speech.features.extraction import extract_features
from unisono.speech.features.extractors import FeatureType
from unisono.speech.graph.decoding_graph import GraphInputs, build_graph
from unisono.speech.graph.language_model import estimate_ngrams, read_language_model
from unisono.speech.validation import InputOptions, validate_data

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
    estimate_ngrams(said, lexicon.words, 3).write(folder / "lm.arpa")
    return folder


def use(folder: Path, oov: Oov, resample: bool) -> None:
    """Does with a data directory what `prepare` and `decode` do, but for the learning."""
    probe.cache_clear()
    lexicon = Lexicon.read(folder / "lexicon.txt")
    validated = validate_data(folder, InputOptions(oov=oov, resample=resample), lexicon)
    lexicon = validated.lexicon or lexicon
    one_line(validated.out_of_vocabulary)
    language_model = read_language_model(folder / "lm.arpa", lexicon.words, one_line)
    extracted = extract_features(
        validated.utterances,
        validated.reader,
        FeatureType.FBANK,
        validated.exclusions,
        processes=1,
        log=one_line,
        scratch=folder,
    )
    topology = Topology.initial(lexicon.phones)
    tying = StateTying.monophone(topology)
    for utterance, features in extracted:
        build_transcript_graph(utterance.words, lexicon, topology, tying)
        assert np.isfinite(features.network).all() and np.isfinite(features.cepstra).all()
    for line in validated.exclusions.summary():
        one_line(line)
    validated.exclusions.write(folder / "excluded.txt")
    graph = build_graph(
        GraphInputs(
            lexicon=lexicon,
            language_model=language_model,
            topology=topology,
            tying=tying,
            silence=0.5,
        )
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
        hurt = damaged_bytes if file in SOUNDS else damaged_text
        data = hurt(data, draw) if data else data
    (folder / file).write_bytes(data)
    try:
        use(folder, draw.choice(list(Oov)), draw.random() < 0.3)
    except UserError as error:
        one_line(str(error))
        return "refused"
    return "used"


def test_damage_is_told_or_excluded(whole: Path, tmp_path: Path) -> None:
    outcomes = {damage(whole, tmp_path / "data", seed) for seed in range(30)}
    assert outcomes == {"refused", "used"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_much_more_damage_is_told_or_excluded(whole: Path, tmp_path: Path) -> None:
    for seed in range(1000, 4000):
        damage(whole, tmp_path / "data", seed)


def test_times_beyond_all_numbers_of_samples(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    names = [line.split()[0] for line in (folder / "wav.scp").read_text().splitlines()]
    times = ["0 1e308", "1e308 -1", "1e307 1e308", "0 1.0", "nan 1", "1 1"]
    pairs = zip(names, times, strict=True)
    (folder / "segments").write_text("".join(f"{name} {name} {t}\n" for name, t in pairs))
    validated = validate_data(folder, InputOptions(), Lexicon.read(folder / "lexicon.txt"))
    assert [u.id for u in validated.utterances] == [names[3]]


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
    validated = validate_data(folder, InputOptions(), Lexicon.read(folder / "lexicon.txt"))
    assert [u.id for u in validated.utterances] == [lines[1].split()[0]]
    assert validated.reader.rate == 8000
