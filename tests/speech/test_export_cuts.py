"""A PREP as lhotse's cuts, read again by lhotse."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("kaldifst", reason="the speech extra is not installed")
pytest.importorskip("lhotse", reason="lhotse is not installed")

import lhotse

from support.tones import PHONES, RATE, write_tones
from unisono.data import Prep, synthesise
from unisono.errors import UserError
from unisono.speech.corpus.ctm import read_ctm
from unisono.speech.export import export
from unisono.speech.export_cuts import export_cuts
from unisono.speech.features.extractors import FeatureType
from unisono.speech.prepare import PrepareOptions, TyingMethod, prepare
from unisono.speech.prepare_aligned import prepare_aligned
from unisono.speech.validation import InputOptions


def quiet(_: str) -> None:
    return


OPTIONS = PrepareOptions(heldout=0.25, gaussians=40, tying=TyingMethod.NONE)


@pytest.fixture(scope="module")
def prep(tmp_path_factory: pytest.TempPathFactory) -> Prep:
    """Of recordings with silence before the one utterance in each, and with an unknown word."""
    place = tmp_path_factory.mktemp("cuts")
    data = place / "data"
    write_tones(data, speakers=4, utterances=3, seed=1)
    names = [line.split()[0] for line in (data / "wav.scp").read_text().splitlines()]
    text = (data / "text").read_text().replace(f"{names[0]} ", f"{names[0]} oh ")
    (data / "text").write_text(text)
    recordings = "".join(f"rec-{name} {name}.wav\n" for name in names)
    (data / "wav.scp").write_text(recordings)
    (data / "segments").write_text("".join(f"{name} rec-{name} 0.05 -1\n" for name in names))
    return prepare(data, data / "lexicon.txt", place / "prep", OPTIONS, quiet)


@pytest.fixture(scope="module")
def cuts(prep: Prep) -> Any:
    out = prep.path.with_name("out")
    assert export_cuts(prep, out) == 12
    return lhotse.CutSet.from_file(out / "cuts.jsonl.gz").to_eager()


def spans(prep: Prep) -> list[slice]:
    return [slice(*ends) for ends in zip(prep.starts[:-1], prep.starts[1:], strict=True)]


def check(prep: Prep, cuts: Any) -> None:
    """Everything that any PREP has is in its cuts, and lhotse finds no fault with them."""
    assert list(cuts.ids) == prep.table.id
    for n, (cut, rows) in enumerate(zip(cuts, spans(prep), strict=True)):
        lhotse.validate(cut)
        (supervision,) = cut.supervisions
        frames = cut.load_features()
        assert frames.dtype == np.float32 and cut.num_frames == rows.stop - rows.start
        assert np.array_equal(frames, prep.frames[rows].astype(np.float32))
        assert cut.part == prep.table.part[n].value
        assert supervision.speaker == prep.table.speakers[prep.table.speaker[n]]
        assert supervision.duration == cut.duration
        assert cut.duration == pytest.approx(cut.num_frames * cut.frame_shift)
        if prep.header.states:
            assert np.array_equal(cut.load_ali(), prep.states[rows])


def test_all_is_there_again(prep: Prep, cuts: Any) -> None:
    check(prep, cuts)
    assert cuts[0].frame_shift == 0.01 and cuts[0].sampling_rate == RATE
    lines = Path(f"{prep.header.made_by['origin']}/text").read_text().splitlines()
    text = dict(line.split(maxsplit=1) for line in lines)
    assert [cut.supervisions[0].text for cut in cuts] == [text[name] for name in cuts.ids]
    assert cuts[0].supervisions[0].text.startswith("oh ")


def test_words_and_phones_are_where_the_prep_has_them(prep: Prep, cuts: Any) -> None:
    timed = read_ctm(prep.path / "words.ctm")
    for cut, rows in zip(cuts, spans(prep), strict=True):
        alignment, words = cut.supervisions[0].alignment, timed[f"rec-{cut.id}"]
        assert [item.symbol for item in alignment["word"]] == cut.supervisions[0].text.split()
        starts = [cut.start + item.start for item in alignment["word"]]
        assert starts == pytest.approx([w.start for w in words], abs=2e-4)
        phones = alignment["phone"]
        assert phones[0].start == 0 and phones[-1].end == pytest.approx(cut.duration)
        assert {item.start for item in alignment["word"]} <= {item.start for item in phones}
        states = prep.states[rows]
        for item in phones:
            own = states[round(item.start * 100) : round(item.end * 100)]
            if item.symbol in PHONES:  # three states of a monophone, one after the other
                assert np.all(np.diff(own) >= 0) and len(set(own.tolist())) == 3
        said = "".join(item.symbol for item in phones if item.symbol in PHONES)
        spelled = cut.supervisions[0].text.replace("oh ", "").replace(" ", "").upper()
        assert said.replace("IU", "IO") == spelled  # "io" has two pronunciations


def test_audio_is_that_of_the_frames(cuts: Any) -> None:
    """The middle of a frame in the audio of a cut is the middle of its window in the file."""
    whole = cuts[2].recording.load_audio()
    first = round((0.05 + 0.0075) * RATE)
    assert np.array_equal(cuts[2].load_audio(), whole[:, first : first + cuts[2].num_samples])


def test_batches_of_lhotse_have_features_and_states(cuts: Any, prep: Prep) -> None:
    from lhotse.dataset import K2SpeechRecognitionDataset
    from lhotse.dataset.collation import collate_custom_field

    some = cuts.subset(first=3).sort_by_duration()
    batch = K2SpeechRecognitionDataset(return_cuts=True)[some]
    assert batch["inputs"].shape == (3, some[0].num_frames, prep.header.dimension)
    assert batch["supervisions"]["num_frames"].tolist() == [cut.num_frames for cut in some]
    states, lengths = collate_custom_field(some, "ali", pad_value=-100)
    assert states.shape == (3, some[0].num_frames) and lengths.tolist()[0] == some[0].num_frames
    assert (states[2] == -100).sum() == some[0].num_frames - some[2].num_frames
    starts = batch["supervisions"]["word_start"][0]
    changes = {0, *(np.flatnonzero(np.diff(some[0].load_ali())) + 1).tolist()}
    assert starts and set(starts) <= changes
    part = some[0].truncate(offset=0.1, duration=0.2)
    assert np.array_equal(part.load_ali(), some[0].load_ali()[10:30])


def test_perturbed_and_resampled_utterances(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_tones(data, speakers=3, utterances=2, seed=2)
    how = PrepareOptions(
        heldout=0.4,
        gaussians=40,
        tying=TyingMethod.NONE,
        perturb=True,
        inputs=InputOptions(rate=11025, resample=True),
    )
    prep = prepare(data, data / "lexicon.txt", tmp_path / "prep", how, quiet)
    cuts = exported(prep, tmp_path / "out", with_audio=6)
    copies = cuts.filter(lambda cut: cut.id.startswith("sp0.9-")).to_eager()
    assert copies and all(cut.sampling_rate == 11025 for cut in cuts)
    for cut in copies:
        original = cuts[cut.id.removeprefix("sp0.9-")].supervisions[0]
        assert cut.supervisions[0].text == original.text
        assert cut.supervisions[0].alignment.keys() == {"phone"} and not cut.has_recording


def exported(prep: Prep, out: Path, *, with_audio: int) -> Any:
    assert export_cuts(prep, out) == with_audio
    cuts = lhotse.CutSet.from_file(out / "cuts.jsonl.gz").to_eager()
    check(prep, cuts)
    return cuts


def test_frames_made_elsewhere(tmp_path: Path) -> None:
    prep = synthesise(
        tmp_path / "prep", speakers=3, utterances_per_speaker=2, frames_per_utterance=9,
        states=3, dimension=2, seed=0, noise=1.0,
    )  # fmt: skip
    cuts = exported(prep, tmp_path / "out", with_audio=0)
    assert cuts[0].frame_shift == 0.01
    assert cuts[0].supervisions[0].text is None and cuts[0].supervisions[0].alignment is None


def test_imported_features_and_alignments(prep: Prep, tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    export(prep, folder)
    how = PrepareOptions(features=FeatureType.KALDI, heldout=0.25)
    made = prepare_aligned(folder, folder / "ali.scp", tmp_path / "prep", how, quiet)
    cuts = exported(made, tmp_path / "out", with_audio=0)
    assert cuts[0].supervisions[0].text is None and cuts[0].supervisions[0].alignment is None


def test_without_an_alignment_there_is_text(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_tones(data, speakers=2, utterances=1, seed=3)
    how = PrepareOptions(heldout=0.5, align=False)
    prep = prepare(data, data / "lexicon.txt", tmp_path / "prep", how, quiet)
    cuts = exported(prep, tmp_path / "out", with_audio=2)
    (supervision,) = cuts[0].supervisions
    assert supervision.text and supervision.alignment is None and "ali" not in cuts[0].custom


def test_audio_that_is_gone_is_left_out(prep: Prep, tmp_path: Path) -> None:
    copy = shutil.copytree(prep.path, tmp_path / "prep")
    lines = [json.loads(line) for line in (copy / "sources.jsonl").read_text().splitlines()]
    lines[0]["audio"] += "gone"
    lines[1]["start"] += 60
    (copy / "sources.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert export_cuts(Prep.open(copy), tmp_path / "out") == 10


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("sources.jsonl", "{}\n", "line 1: id: field required"),
        ("sources.jsonl", '{"id": "x", "recording": "y"}\n', "other utterances"),
        ("words.ctm", "", "words.ctm lacks words of"),
        ("speech/tree.json", "[]", "is broken"),
    ],
)
def test_damage_is_one_line(
    prep: Prep, tmp_path: Path, file: str, content: str, message: str
) -> None:
    copy = shutil.copytree(prep.path, tmp_path / "prep")
    (copy / file).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        export_cuts(Prep.open(copy), tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_written_is_one_line(
    prep: Prep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="exists already"):
        export_cuts(prep, prep.path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        export_cuts(prep, tmp_path / "file" / "out")
    monkeypatch.setitem(sys.modules, "lhotse", None)
    with pytest.raises(UserError, match=r"pip install 'unisono\[lhotse\]'"):
        export_cuts(prep, tmp_path / "out")
    assert not (tmp_path / "out").exists()
