"""Frames made elsewhere become a PREP, or are refused in one line."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.data import Part, Prep, convert_frames
from unisono.errors import UserError


@pytest.fixture
def arrays() -> dict[str, Any]:
    """Four train speakers and one for test, two utterances of five frames each."""
    random = np.random.default_rng(2)
    return {
        "feats": random.normal(size=(50, 3)).astype(np.float16),
        "states": random.integers(0, 4, 50).astype(np.int16),
        "starts": np.arange(0, 51, 5, dtype=np.int32),
        "utts": np.array([f"u{k}" for k in range(10)]),
        "spks": np.array([f"s{k // 2}" for k in range(10)]),
        "part": np.array(["train"] * 8 + ["test"] * 2),
        "log_prior": np.zeros(4, dtype=np.float32),
    }


def convert(tmp_path: Path, arrays: dict[str, Any], **options: Any) -> Prep:
    np.savez(tmp_path / "frames.npz", **arrays)
    return convert_frames(tmp_path / "frames.npz", tmp_path / "prep", **options)


def refusal(npz: Path) -> str:
    with pytest.raises(UserError) as caught:
        convert_frames(npz, npz.parent / "prep")
    assert "\n" not in str(caught.value)
    assert str(npz) in str(caught.value)
    assert not (npz.parent / "prep").exists()
    return str(caught.value)


def test_the_frames_stay_and_a_train_speaker_is_held_out(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    prep = convert(tmp_path, arrays)
    np.testing.assert_array_equal(prep.frames, arrays["feats"])
    np.testing.assert_array_equal(prep.states, arrays["states"])
    np.testing.assert_array_equal(prep.starts, arrays["starts"])
    assert prep.table.id == arrays["utts"].tolist()
    assert prep.header.states == 4
    counts = {part: len(prep.utterances_of(part)) for part in Part}
    assert counts == {Part.TRAIN: 6, Part.HELDOUT: 2, Part.TEST: 2}
    assert len({prep.table.speaker[u] for u in prep.utterances_of(Part.HELDOUT)}) == 1
    assert prep.utterances_of(Part.TEST).tolist() == [8, 9]
    prep.verify()


def test_share_and_seed_are_obeyed_and_noted(tmp_path: Path, arrays: dict[str, Any]) -> None:
    prep = convert(tmp_path, arrays, heldout_share=0.5, seed=3)
    assert len(prep.utterances_of(Part.HELDOUT)) == 4
    assert prep.header.made_by["heldout_share"] == 0.5
    assert prep.header.made_by["seed"] == 3


def test_float64_becomes_float32(tmp_path: Path, arrays: dict[str, Any]) -> None:
    prep = convert(tmp_path, arrays | {"feats": arrays["feats"].astype(np.float64)})
    assert prep.frames.dtype == np.float32


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("feats", np.zeros((49, 3), dtype=np.float16), "49 frames but 50 states"),
        ("states", np.zeros(51, dtype=np.int16), "50 frames but 51 states"),
        ("states", np.full(50, 4), "outside 0..3"),
        ("starts", np.arange(0, 46, 5), "11 integers"),
        ("spks", np.array(["s"] * 9), "9 speakers"),
        ("part", np.array(["train"] * 9), "9 parts"),
        ("part", np.array(["dev"] * 10), "'dev'"),
        ("utts", np.arange(10), "utts"),
        ("utts", np.array(["u"] * 10), "'u' occurs 10"),
        ("utts", np.array([f"u{k}" for k in range(9)] + [""]), "utterance id '' is empty"),
        ("utts", np.array([f"u{k}" for k in range(9)] + ["a b"]), "'a b' is empty or has blanks"),
        ("utts", np.array([f"u{k}" for k in range(9)] + ["a\n"]), r"utterance id 'a\n'"),
        ("spks", np.array([["s"]] * 10), "spks"),
        ("log_prior", np.float32(0), "log_prior"),
        ("spks", np.array([None] * 10), "holds Python objects"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], key: str, value: Any, said: str
) -> None:
    np.savez(tmp_path / "frames.npz", **(arrays | {key: value}))
    assert said in refusal(tmp_path / "frames.npz")


def test_missing_keys_are_all_named(tmp_path: Path, arrays: dict[str, Any]) -> None:
    del arrays["spks"], arrays["log_prior"]
    np.savez(tmp_path / "frames.npz", **arrays)
    assert "lacks spks, log_prior" in refusal(tmp_path / "frames.npz")


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


def test_files_of_another_kind_are_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    file = tmp_path / "frames.npz"
    assert "no such file" in refusal(file)
    file.write_bytes(b"")
    refusal(file)
    file.write_bytes(b"neither zip nor array")
    refusal(file)
    file.write_bytes(pickle.dumps(Bomb()))
    refusal(file)
    with file.open("wb") as one:
        np.save(one, arrays["feats"])
    assert "savez" in refusal(file)


@pytest.mark.parametrize("left", [0.3, 0.9, 0.999])
def test_a_torn_file_is_refused(tmp_path: Path, arrays: dict[str, Any], left: float) -> None:
    file = tmp_path / "frames.npz"
    np.savez_compressed(file, **arrays)
    content = file.read_bytes()
    file.write_bytes(content[: int(left * len(content))])
    refusal(file)


def test_a_damaged_file_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    file = tmp_path / "frames.npz"
    for save in (np.savez, np.savez_compressed):
        save(file, **arrays)
        content = bytearray(file.read_bytes())
        content[200:260] = bytes(60)
        file.write_bytes(content)
        refusal(file)


def test_an4_is_converted_and_learned(
    shared: Path, tmp_path: Path, fit: Callable[..., tuple[float, float]]
) -> None:
    prep = convert_frames(shared / "data/an4_frames/an4_frames.npz", tmp_path / "an4")
    assert prep.frames.shape == (288174, 40)
    speakers = {part: {prep.table.speaker[u] for u in prep.utterances_of(part)} for part in Part}
    assert {part: len(of) for part, of in speakers.items()} == {
        Part.TRAIN: 67,
        Part.HELDOUT: 7,
        Part.TEST: 10,
    }
    assert len(prep.utterances_of(Part.TEST)) == 130
    assert np.exp(prep.priors).sum() == pytest.approx(1, abs=1e-3)
    loss, accuracy = fit(prep, context=5, layers=2, hidden=128, steps=250)
    assert loss < 0.5 * math.log(790)  # 6.67 for a guess, about 5.7 for the priors alone
    assert accuracy > 0.3  # the commonest state: 0.11
