"""Corpora larger than memory: what is kept in files, what is bounded, what is set aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unisono.errors import UserError
from unisono.speech.alignment import worker
from unisono.speech.alignment.state_tying import Tying
from unisono.speech.alignment.topology import Topology
from unisono.speech.alignment.trainer import Trainer
from unisono.speech.alignment.transcript_graph import count_places, lay_paths
from unisono.speech.alignment.worker import Spoken
from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import Reason, SetAside
from unisono.speech.corpus.lexicon import Lexicon
from unisono.speech.decoding.tuning_set import sample_of
from unisono.speech.features.extraction import Heard, network_frames
from unisono.speech.features.frame_store import Shelf, join
from unisono.speech.prepare import monophone_gaussians, scratch_beside
from unisono.speech.validation import alignable

LEXICON = Lexicon(entries={"yes": [("Y", "E", "S")], "no": [("N", "O"), ("N", "A", "O")]})


def arrays(random: np.random.Generator) -> list[np.ndarray]:
    return [random.normal(size=(n, 4)).astype(np.float32) for n in (3, 0, 7, 1)]


def test_what_is_put_away_comes_back(tmp_path: Path) -> None:
    pieces = arrays(np.random.default_rng(0))
    shelf = Shelf(tmp_path / "frames")
    for piece in pieces:
        shelf.put(piece)
    for found, piece in zip(shelf.all(), pieces, strict=True):
        np.testing.assert_array_equal(found, piece)
    assert Shelf(tmp_path / "empty").all() == []


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_joined_arrays_are_one_array(tmp_path: Path, kind: str) -> None:
    pieces = arrays(np.random.default_rng(1))
    whole = np.concatenate(pieces).astype(kind)
    made = join(iter(pieces), tmp_path / "all.npy", whole.shape, kind)
    assert made.dtype == whole.dtype
    np.testing.assert_array_equal(made, whole)
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), whole)


def fill_shelf(path: Path) -> None:
    shelf = Shelf(path)
    shelf.put(np.zeros((100, 4), dtype=np.float32))
    shelf.all()


def fill_file(path: Path) -> None:
    join([np.zeros((100, 4))], path, (100, 4), "float32")


@pytest.mark.parametrize("fill", [fill_shelf, fill_file])
def test_a_full_disk_is_one_line(fill: Callable[[Path], None]) -> None:
    with pytest.raises(UserError, match="No space left on device; make room"):
        fill(Path("/dev/full"))


def test_a_place_that_cannot_be_written_is_told_before_work_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot write to"),
        scratch_beside(tmp_path / "file" / "prep"),
    ):
        pass
    with scratch_beside(tmp_path / "new" / "prep") as scratch:
        (scratch / "some").write_text("thing")
    assert list((tmp_path / "new").iterdir()) == []


def test_utterances_too_long_for_memory_are_set_aside() -> None:
    aside = SetAside()
    hour = Utterance(id="hour", speaker="s", words=("yes",) * 9000, recording="r", audio="r.wav")
    assert not alignable(hour, 360_000, LEXICON, aside)
    assert aside.count(Reason.TOO_LONG) == 1
    assert alignable(hour, 360_000, None, aside)  # to be decoded, not aligned
    topology = Topology.start(LEXICON.phones)
    words = ("yes", "no", "no")
    laid = lay_paths(words, LEXICON, topology, Tying.none(topology))
    assert count_places(words, LEXICON) == pytest.approx(len(laid.state), rel=0.3)


def test_graphs_that_are_not_kept_are_laid_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(2)
    np.save(tmp_path / "frames.npy", random.normal(size=(300, 6)).astype(np.float32))
    spoken = Spoken(
        file=tmp_path / "frames.npy",
        starts=np.arange(0, 301, 60),
        words=[("yes", "no"), ("no",), ("yes",), ("no", "yes"), ("yes", "yes")],
        lexicon=LEXICON,
    )

    def means() -> np.ndarray:
        with Trainer(spoken, seed=0, processes=1, say=lambda _: None) as trainer:
            return trainer.monophones(range(5), 40).mixtures.means

    kept = means()
    monkeypatch.setattr(worker, "_MOST_PLACES", 0)
    np.testing.assert_array_equal(means(), kept)


def test_long_utterances_make_a_small_sample() -> None:
    def heldout(count: int, frames: int) -> list[tuple[Utterance, Heard]]:
        random = np.random.default_rng(3)
        return [
            (
                Utterance(
                    id=f"u{n}", speaker=f"s{n % 3}", words=("no",), recording="r", audio="r.wav"
                ),
                Heard(
                    network=random.normal(size=(frames, 2)).astype(np.float32),
                    cepstra=random.normal(size=(frames, 2)).astype(np.float32),
                ),
            )
            for n in range(count)
        ]

    sizes = {}
    for count, frames in ((300, 5), (30, 20_000), (7, 50)):
        heard = heldout(count, frames)
        sample = sample_of(heard)
        assert sample is not None
        sizes[count] = len(sample.words)
        whole = list(network_frames(heard))
        np.testing.assert_allclose(sample.network[:frames], whole[0], atol=1e-5)
        np.testing.assert_allclose(sample.network[-frames:], whole[-1], atol=1e-5)
        for speaker in range(3):
            own = np.concatenate(whole[speaker::3])
            np.testing.assert_allclose([own.mean(), own.std()], [0, 1], atol=1e-3)
    assert sizes == {300: 200, 30: 5, 7: 7}


def test_many_phones_have_more_than_a_gaussian_a_state() -> None:
    assert monophone_gaussians(LEXICON) == 1000
    tones = Lexicon(entries={f"w{n}": [(f"A{n}", f"B{n}")] for n in range(200)})
    assert monophone_gaussians(tones) > 3 * Topology.start(tones.phones).states
