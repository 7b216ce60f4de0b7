"""A PREP is what was written, whole or not there, and says in one line what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from unisono.data import Corpus, Part, Prep, write_prep
from unisono.errors import UserError

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "prep.md"


def refusal(call: Callable[[], object]) -> str:
    """The one line with which a call refuses."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def prep(corpus: Corpus, tmp_path: Path) -> Prep:
    return write_prep(tmp_path / "prep", corpus, {"tool": "test"})


def test_reads_back_what_was_written(corpus: Corpus, prep: Prep) -> None:
    np.testing.assert_array_equal(prep.frames, corpus.frames)
    assert prep.frames.dtype == np.float16
    np.testing.assert_array_equal(prep.states, corpus.states)
    assert prep.states.dtype == np.int16
    np.testing.assert_array_equal(prep.starts, corpus.starts)
    assert prep.table.id == corpus.utterances
    assert [prep.table.speakers[row] for row in prep.table.speaker] == corpus.speakers
    assert prep.table.part == corpus.parts
    assert prep.utterances_of(Part.HELDOUT).tolist() == [1, 5]
    assert prep.header.made_by == {"origin": "by hand", "tool": "test"}
    assert prep.frame_shift == timedelta(milliseconds=10)
    prep.verify()


def test_an_unknown_frame_shift_and_many_states(corpus: Corpus, tmp_path: Path) -> None:
    prep = write_prep(tmp_path / "p", replace(corpus, frame_shift=None, state_count=40_000), {})
    assert prep.frame_shift is None
    assert prep.states.dtype == np.int32


def test_statistics_are_those_of_the_speaker_and_of_the_train_part(
    corpus: Corpus, prep: Prep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lengths = np.diff(corpus.starts)
    said_by = np.repeat(corpus.speakers, lengths)
    for row, name in enumerate(["ann", "bob", "cy", "di"]):
        own = corpus.frames[said_by == name].astype(np.float64)
        np.testing.assert_allclose(prep.speaker_mean[row], own.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(prep.speaker_std[row], own.std(axis=0), rtol=1e-5)
    states = corpus.states[np.repeat([p is Part.TRAIN for p in corpus.parts], lengths)].tolist()
    for state in range(7):
        share = max(states.count(state), 1) / len(states)
        assert prep.priors[state] == pytest.approx(math.log(share))
    monkeypatch.setattr("unisono.data.corpus._BLOCK_FRAMES", 8)  # blocks of one or more utterances
    blocks = write_prep(tmp_path / "blocks", corpus, {})
    np.testing.assert_allclose(blocks.speaker_std, prep.speaker_std, rtol=1e-6)


def test_a_dimension_that_never_changes_normalises_to_zero(corpus: Corpus, tmp_path: Path) -> None:
    frames = corpus.frames.copy()
    frames[:, 1] = 12.5
    prep = write_prep(tmp_path / "p", replace(corpus, frames=frames), {})
    normal = (prep.frames[:4] - prep.speaker_mean[0]) / prep.speaker_std[0]
    assert (normal[:, 1] == 0).all()


def test_the_fingerprint_is_of_the_contents_alone(
    corpus: Corpus, prep: Prep, tmp_path: Path
) -> None:
    again = write_prep(tmp_path / "again", corpus, {"tool": "another"})
    assert again.fingerprint == prep.fingerprint
    frames = corpus.frames.copy()
    frames[3, 1] += 1
    states = corpus.states.copy()
    states[0] = (states[0] + 1) % 6
    changes = {
        "frames": replace(corpus, frames=frames),
        "states": replace(corpus, states=states),
        "ids": replace(corpus, utterances=["a0", *corpus.utterances[1:]]),
        "parts": replace(corpus, parts=[Part.TEST, *corpus.parts[1:]]),
        "shift": replace(corpus, frame_shift=None),
    }
    prints = {write_prep(tmp_path / name, c, {}).fingerprint for name, c in changes.items()}
    assert len(prints | {prep.fingerprint}) == 6


@pytest.mark.parametrize("name", ["frames", "states", "speaker_std", "priors"])
def test_verify_sees_one_changed_byte_that_open_does_not(prep: Prep, name: str) -> None:
    file = prep.path / f"{name}.npy"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1  # the lower byte of the last state: another one, but a state
    file.write_bytes(content)
    changed = Prep.open(prep.path)
    assert "fingerprint" in refusal(changed.verify)


FILES = ["frames.npy", "states.npy", "starts.npy", "priors.npy", "speaker_mean.npy"]


@pytest.mark.parametrize("name", [*FILES, "utterances.json", "prep.json"])
def test_a_missing_file_is_named(prep: Prep, name: str) -> None:
    (prep.path / name).unlink()
    assert name in refusal(lambda: Prep.open(prep.path))


@pytest.mark.parametrize("name", [*FILES, "utterances.json", "prep.json"])
@pytest.mark.parametrize("left", [0.0, 0.2, 0.99])
def test_a_torn_file_is_named(prep: Prep, name: str, left: float) -> None:
    content = (prep.path / name).read_bytes()
    (prep.path / name).write_bytes(content[: int(left * len(content))])
    assert name in refusal(lambda: Prep.open(prep.path))


def test_a_file_that_is_too_long_or_of_another_shape_is_named(prep: Prep) -> None:
    file = prep.path / "frames.npy"
    file.write_bytes(file.read_bytes() + b"more")
    assert "frames.npy" in refusal(lambda: Prep.open(prep.path))
    np.save(file, np.zeros((4, 3), dtype=np.float16))
    assert "(4, 3)" in refusal(lambda: Prep.open(prep.path))
    np.save(file, np.array([{}]), allow_pickle=True)
    assert "frames.npy" in refusal(lambda: Prep.open(prep.path))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("format_version", 2, "format_version 2"),
        ("frames", "many", "frames"),
        ("frames", 30, "frames.npy"),
        ("speakers", 5, "speaker_mean.npy"),
        ("utterances", 3, "starts.npy"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    prep: Prep, field: str, value: object, said: str
) -> None:
    file = prep.path / "prep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    assert said in refusal(lambda: Prep.open(prep.path))


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", ["a"]), ("speaker", [9] * 7), ("speaker", [-1] * 7), ("part", ["dev"] * 7)],
)
def test_a_table_that_does_not_fit_is_refused(prep: Prep, field: str, value: list[object]) -> None:
    file = prep.path / "utterances.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    assert "utterances.json" in refusal(lambda: Prep.open(prep.path))


def test_a_directory_that_is_no_prep_is_refused(tmp_path: Path) -> None:
    assert "no such directory" in refusal(lambda: Prep.open(tmp_path / "nowhere"))
    assert "is not a PREP" in refusal(lambda: Prep.open(tmp_path))


def test_an_existing_place_is_refused_and_left_alone(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "dangling"):
        assert "exists" in refusal(lambda name=name: write_prep(tmp_path / name, corpus, {}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "empty"]
    assert not any((tmp_path / "empty").iterdir())


def test_a_write_that_fails_leaves_nothing(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = np.save, []

    def full(file: object, array: np.ndarray) -> None:
        seen.append(array)
        if len(seen) == 3:
            raise OSError(28, "No space left on device")
        real(file, array)

    monkeypatch.setattr(np, "save", full)
    assert "No space left" in refusal(lambda: write_prep(tmp_path / "p", corpus, {}))
    assert len(seen) == 3
    assert not any(tmp_path.iterdir())


def test_the_document_lists_every_file_and_field(prep: Prep) -> None:
    text = DOCUMENT.read_text()
    for file in prep.path.iterdir():
        assert f"| `{file.name}` |" in text
    for name in ("prep.json", "utterances.json"):
        for field in json.loads((prep.path / name).read_text()):
            assert f"`{field}`" in text


def test_the_example_in_the_document_runs(prep: Prep) -> None:
    example = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    names: dict[str, object] = {"path": str(prep.path)}
    exec(example[1], names)
    expected = (prep.frames[4:5] - prep.speaker_mean[2]) / prep.speaker_std[2]
    np.testing.assert_array_equal(names["x"], expected)
    assert names["header"] == json.loads((prep.path / "prep.json").read_text())
