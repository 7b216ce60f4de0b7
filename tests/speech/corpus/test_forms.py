"""A corpus as a Kaldi data directory, as lhotse cuts and as an audio folder is one corpus."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.mutations import damaged_json, damaged_text
from support.tones import RATE, write_tones
from unisono.errors import UserError
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import Exclusions
from unisono.speech.corpus.read import read_corpus
from unisono.speech.features.audio import AudioReader, UtteranceError
from unisono.speech.prepare import PrepareOptions, TyingMethod, prepare

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")


@pytest.fixture(scope="module")
def kaldi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with relative paths."""
    folder = tmp_path_factory.mktemp("forms") / "kaldi"
    write_tones(folder, speakers=4, utterances=2, seed=1)
    return folder


def table(folder: Path, name: str) -> dict[str, str]:
    rows = (line.partition(" ") for line in (folder / name).read_text().splitlines())
    return {key: value for key, _, value in rows}


def cut(name: str, audio: Path | str, seconds: float, text: str, speaker: str) -> dict[str, Any]:
    """A cut of a whole recording with one supervision, as lhotse writes it."""
    recording = {
        "id": name, "sources": [{"type": "file", "channels": [0], "source": str(audio)}],
        "sampling_rate": RATE, "num_samples": round(seconds * RATE), "duration": seconds,
        "channel_ids": [0],
    }  # fmt: skip
    supervision = {
        "id": name, "recording_id": name, "start": 0.0, "duration": seconds, "channel": 0,
        "text": text, "speaker": speaker,
    }  # fmt: skip
    return {
        "id": f"{name}-cut", "start": 0.0, "duration": seconds, "channel": 0,
        "supervisions": [supervision], "recording": recording, "type": "MonoCut",
    }  # fmt: skip


def cuts_of(kaldi: Path) -> list[dict[str, Any]]:
    texts, speakers = table(kaldi, "text"), table(kaldi, "utt2spk")
    return [
        cut(name, kaldi / file, soundfile.info(kaldi / file).duration, texts[name], speakers[name])
        for name, file in table(kaldi, "wav.scp").items()
    ]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def as_cuts(kaldi: Path, out: Path) -> Path:
    return write_lines(out / "cuts.jsonl.gz", cuts_of(kaldi))


def as_lhotse(kaldi: Path, out: Path) -> Path:
    """The directory as lhotse itself imports it, and writes it."""
    lhotse = pytest.importorskip("lhotse", reason="lhotse is not installed")
    copy = shutil.copytree(kaldi, out / "absolute")
    rows = table(kaldi, "wav.scp").items()
    (copy / "wav.scp").write_text("".join(f"{name} {kaldi / file}\n" for name, file in rows))
    recordings, supervisions, _ = lhotse.kaldi.load_kaldi_data_dir(copy, sampling_rate=RATE)
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    cuts.to_file(out / "written.jsonl.gz")
    return out / "written.jsonl.gz"


def rows_of(kaldi: Path) -> list[dict[str, str]]:
    texts, speakers = table(kaldi, "text"), table(kaldi, "utt2spk")
    return [
        {"file_name": file, "transcription": texts[name], "speaker": speakers[name], "age": "7"}
        for name, file in table(kaldi, "wav.scp").items()
    ]


def audio_folder(kaldi: Path, out: Path) -> Path:
    folder = out / "folder"
    folder.mkdir(parents=True)
    for file in kaldi.glob("*.wav"):
        shutil.copy(file, folder)
    return folder


def as_csv(kaldi: Path, out: Path) -> Path:
    folder, rows = audio_folder(kaldi, out), rows_of(kaldi)
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def as_jsonl(kaldi: Path, out: Path) -> Path:
    folder = audio_folder(kaldi, out)
    write_lines(folder / "metadata.jsonl", rows_of(kaldi))  # type: ignore[arg-type]
    return folder


FORMS = [as_cuts, as_lhotse, as_csv, as_jsonl]


@pytest.fixture(scope="module")
def prepared(kaldi: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(kaldi, kaldi, tmp_path_factory.mktemp("prepared") / "prep")


def contents(data: Path, kaldi: Path, out: Path) -> dict[str, bytes]:
    """All files of the PREP of some data; where it came from is left out."""
    options = PrepareOptions(tying=TyingMethod.NONE, heldout=0.25, gaussians=40)
    prepare(data, kaldi / "lexicon.txt", out, options, lambda _: None)
    files = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    header = json.loads(files["prep.json"])
    assert header["made_by"].pop("origin") == str(data)
    sources = [json.loads(line) for line in files["sources.jsonl"].splitlines()]
    for source in sources:
        assert Path(source.pop("audio")).name == f"{source['id']}.wav"
    files["sources.jsonl"] = json.dumps(sources).encode()
    return {**files, "prep.json": json.dumps(header).encode()}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_prep(
    form: Callable[[Path, Path], Path], kaldi: Path, prepared: dict[str, bytes], tmp_path: Path
) -> None:
    found = contents(form(kaldi, tmp_path), kaldi, tmp_path / "prep")
    assert found.keys() == prepared.keys()
    assert [name for name in found if found[name] != prepared[name]] == []


def read(data: Path, *, transcribed: bool = True) -> tuple[list[Utterance], Exclusions]:
    exclusions = Exclusions()
    found = read_corpus(data, exclusions, transcribed=transcribed, channel=1)
    return found, exclusions


def test_supervisions_are_utterances_wherever_their_cut_begins(tmp_path: Path) -> None:
    one = cut("meeting", "/audio/meeting.wav", 60.0, "", "")
    one["start"], one["duration"] = 10.0, 5.0
    one["recording"]["sources"] = [
        {"type": "file", "channels": [0], "source": "/audio/left.wav"},
        {"type": "file", "channels": [1, 2], "source": "/audio/right.wav"},
    ]
    spoken = [(-0.5, 2.0, 0, "a b", "ann"), (1.25, 3.5, 2, "c", None), (3.0, 9.0, 1, None, "bo")]
    one["supervisions"] = [
        {
            "id": f"u {n}", "recording_id": "meeting", "start": start, "duration": duration,
            "channel": channel, "text": text, "speaker": speaker,
        }
        for n, (start, duration, channel, text, speaker) in enumerate(spoken)
    ]  # fmt: skip
    whole = {**cut("whole", "w.flac", 2.5, "", ""), "supervisions": []}
    found, exclusions = read(
        write_lines(tmp_path / "c.jsonl", [whole, one, whole]), transcribed=False
    )
    first = Utterance(
        id="u_0", speaker="ann", words=("a", "b"), recording="meeting", audio="/audio/left.wav",
        start=9.5, end=11.5, channel=0, transcribed=True,
    )  # fmt: skip
    assert found[:3] == [
        first,
        replace(
            first, id="u_1", speaker="u_1", words=("c",), audio="/audio/right.wav", start=11.25,
            end=14.75, channel=1,
        ),
        replace(
            first, id="u_2", speaker="bo", words=(), audio="/audio/right.wav", start=13.0,
            end=22.0, transcribed=False,
        ),
    ]  # fmt: skip
    assert found[3].id == "whole-cut" and found[3].recording == "whole" and found[3].end == 2.5
    assert len(found) == 4 and len(exclusions) == 0
    with_text, exclusions = read(tmp_path / "c.jsonl")
    assert [u.id for u in with_text] == ["u_0", "u_1"] and len(exclusions) == 2


def test_what_lhotse_would_compute_is_excluded_by_name(tmp_path: Path) -> None:
    good = cut("good", "good.wav", 1.0, "a", "s")
    changes: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("faster", lambda c: c["recording"].update(transforms=[{"name": "Speed"}])),
        ("linked", lambda c: c["recording"]["sources"][0].update(type="url")),
        ("silent", lambda c: c.pop("recording")),
        ("early", lambda c: c["supervisions"][0].update(start=-2.0)),
        ("empty", lambda c: c["supervisions"][0].update(duration=0.0)),
        ("stereo", lambda c: c["supervisions"][0].update(channel=[0, 1])),
        ("right", lambda c: c["supervisions"][0].update(channel=3)),
        ("piped", lambda c: c["recording"]["sources"][0].update(type="command", source="rm -r x")),
        ("ended", lambda c: c["recording"]["sources"][0].update(source="rm -r x|")),
        ("mute", lambda c: c["supervisions"][0].pop("text")),
    ]
    rows = [good, {"id": "mixed", "type": "MixedCut", "tracks": []}]
    for name, change in changes:
        rows.append(cut(name, "x.wav", 1.0, "a", "s"))
        change(rows[-1])
    rows += [cut("twice", "x.wav", 1.0, "a", "s"), cut("twice", "y.wav", 1.0, "a", "s")]
    found, exclusions = read(write_lines(tmp_path / "cuts.jsonl.gz", rows))
    assert [u.id for u in found] == ["good"]
    for name in ["mixed", "twice", *(name for name, _ in changes)]:
        assert name in exclusions
    assert all("\n" not in line for line in exclusions.summary())


def test_a_command_runs_only_when_allowed(kaldi: Path, tmp_path: Path) -> None:
    name, file = next(iter(table(kaldi, "wav.scp").items()))
    piped = cut(name, f"cat {kaldi / file}", 1.0, "io", "s")
    piped["recording"]["sources"][0]["type"] = "command"
    manifest = write_lines(tmp_path / "cuts.jsonl", [piped])
    with pytest.raises(UserError, match="--allow-pipes"):
        read(manifest)
    found = read_corpus(manifest, Exclusions(), transcribed=True, allow_pipes=True)
    assert len(AudioReader(rate=RATE).read(found[0])) == RATE


def test_columns_of_an_audio_folder(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"file_name": "b/two words.mp3", "text": "hello  there", "speaker_id": 17},
        {"file_name": "./a.wav", "transcription": "hi"},
        {"file_name": "c.wav", "transcription": ""},
    ]
    write_lines(tmp_path / "metadata.jsonl", rows)
    found, exclusions = read(tmp_path)
    assert [(u.id, u.speaker, u.words, u.channel) for u in found] == [
        ("a", "a", ("hi",), 1),
        ("b/two_words", "17", ("hello", "there"), 1),
    ]
    assert found[1].audio == str(tmp_path / "b" / "two words.mp3")
    assert "c" in exclusions


GOOD = json.dumps(cut("a", "a.wav", 1.0, "a", "s"))
RECORDING = json.dumps(cut("a", "a.wav", 1.0, "a", "s")["recording"])


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("c.jsonl", f"{GOOD}\n\n{{oops\n", r"c\.jsonl, line 3 is not JSON"),
        ("c.jsonl", f"{GOOD}\n[1]\n", "line 2 is not a JSON object"),
        ("c.jsonl", f"{RECORDING}\n", "line 1: type: field required.*lhotse cut simple"),
        ("c.jsonl", GOOD.replace('"start": 0.0', '"start": NaN'), "line 1: start: .*finite"),
        ("c.jsonl", GOOD.replace('"source": "a.wav"', '"file": 1'), r"sources\.0\.source: field"),
        ("c.jsonl", "", "no usable utterance in .*: it lists none"),
        ("c.jsonl", b"\x1f\x8b\x08half", "cannot unpack .* after line 0"),
        ("c.jsonl", b'{"id": "\xff"}', "line 1 is not UTF-8 text"),
        ("c.jsonl", r'{"id": "\ud800", "type": "MixedCut"}', "line 1: id: .*unicode"),
        ("c.jsonl", GOOD.replace('"a"', r'"\ud800"'), "line 1: .*unicode"),
        ("c.jsonl", '{"id": ' + "9" * 5000 + "}", "line 1 is not JSON"),
        ("cuts.yaml", "- id: a", "is not a corpus: .*lhotse copy"),
        ("metadata.csv", "file,transcription\na.wav,a\n", "no column file_name .it has file, tran"),
        (
            "metadata.csv",
            "file_name,transcription\na.wav,a\nb.wav\n",
            "line 3 does not have 2 values",
        ),
        (
            "metadata.csv",
            "file_name,transcription\na.wav,a, b\n",
            "line 2 does not have 2 values.*quotes",
        ),
        ("metadata.csv", 'file_name,transcription\n"a.wav,a\n', "is not CSV after line 1"),
        ("metadata.csv", "file_name,transcription\n,a\n", "line 2: file_name: string should"),
        ("metadata.csv", "", "no column file_name .it has none"),
        ("metadata.csv", b"file_name,transcription\na.wav,\xff\n", "is not UTF-8 text after line"),
        ("metadata.jsonl", '{"transcription": "a"}', "line 1: file_name: field required"),
        ("metadata.jsonl", '{"file_name": "a.wav", "text": []}', "line 1: text: input should"),
    ],
)
def test_bad_input_is_one_line_that_says_where(
    tmp_path: Path, file: str, content: str | bytes, told: str
) -> None:
    path = tmp_path / file
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=told) as error:
        read(tmp_path if file.startswith("metadata") else path)
    assert "\n" not in str(error.value)


def test_what_does_not_go_together(kaldi: Path, tmp_path: Path) -> None:
    manifest = as_cuts(kaldi, tmp_path)
    with pytest.raises(UserError, match=r"--features kaldi needs a data directory"):
        read_corpus(manifest, Exclusions(), transcribed=True, features=True)
    folder = as_csv(kaldi, tmp_path)
    (folder / "metadata.jsonl").write_text("")
    with pytest.raises(UserError, match=r"has both metadata\.csv and metadata\.jsonl"):
        read(folder)
    with pytest.raises(UserError, match=r"has neither wav\.scp.* nor metadata\.csv or metadata"):
        read(tmp_path)
    with pytest.raises(UserError, match="no data directory at"):
        read(tmp_path / "nowhere.jsonl.gz")


@pytest.mark.parametrize("file", ["c.jsonl", "metadata.csv", "metadata.jsonl"])
def test_any_damage_is_one_line_or_excluded(kaldi: Path, tmp_path: Path, file: str) -> None:
    folder = (as_csv if file.endswith("csv") else as_jsonl)(kaldi, tmp_path)
    path = folder / file
    if file == "c.jsonl":
        write_lines(path, cuts_of(kaldi))
    data, used = path.read_bytes(), 0
    for seed in range(300):
        draw = random.Random(seed)
        hurt = draw.choice((damaged_text, damaged_json)) if "json" in file else damaged_text
        path.write_bytes(hurt(data, draw))
        try:
            found, exclusions = read(path if file == "c.jsonl" else folder)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            used += 1
            for utterance in found:
                with suppress(UtteranceError):
                    AudioReader(rate=RATE).length(utterance)
            exclusions.write(tmp_path / "excluded.txt")
    assert 0 < used < 300
