"""From audio with known times to a PREP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from support.tones import RATE, write_tones
from unisono.data import Part, Prep
from unisono.errors import UserError
from unisono.speech.alignment.topology import Topology
from unisono.speech.corpus.ctm import read_ctm
from unisono.speech.corpus.lexicon import Lexicon, Oov
from unisono.speech.decoding.assets import DecodingAssets
from unisono.speech.features.extractors import FeatureType, fbank
from unisono.speech.graph.language_model import BEGIN, END
from unisono.speech.prepare import (
    PrepareOptions,
    TyingMethod,
    monophone_gaussians,
    prepare,
    scratch_directory,
)
from unisono.speech.validation import InputOptions

Times = dict[str, list[tuple[str, float]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Times, Prep, list[str]]:
    folder = tmp_path_factory.mktemp("tones")
    times = write_tones(folder / "data", speakers=6, utterances=5, seed=1)
    lines: list[str] = []
    options = PrepareOptions(tying=TyingMethod.NONE, heldout=0.2, gaussians=60)
    prep = prepare(
        folder / "data", folder / "data" / "lexicon.txt", folder / "prep", options, lines.append
    )
    return folder, times, prep, lines


def test_a_prep_that_train_can_read(made: tuple[Path, Times, Prep, list[str]]) -> None:
    folder, times, prep, lines = made
    prep.verify()
    assert prep.table.id == sorted(times)
    held = {prep.table.speaker[u] for u in prep.utterances_of(Part.HELDOUT)}
    assert len(held) == 1
    assert prep.header.states == 5 + 6 * 3
    assert prep.header.frame_shift_s == 0.01
    first = prep.table.id[0]
    samples, _ = soundfile.read(folder / "data" / f"{first}.wav", dtype="int16")
    wanted = fbank(samples.astype(float), RATE)
    np.testing.assert_allclose(prep.frames[: prep.starts[1]], wanted, atol=0.01)
    passes = [float(line.split()[5]) for line in lines if line.startswith("pass")]
    assert len(passes) == 40 and passes[-1] > passes[10] > passes[0]


def test_word_starts_are_where_they_are(made: tuple[Path, Times, Prep, list[str]]) -> None:
    _, times, prep, _ = made
    assets = DecodingAssets.read(prep.path)
    silent = assets.gmm_hmm.topology.first[1]
    found = read_ctm(prep.path / "words.ctm")
    assert sorted(found) == prep.table.id
    errors = []
    for u, name in enumerate(prep.table.id):
        said, spoken = found[name], times[name]
        assert [t.word for t in said] == [word for word, _ in spoken]
        errors += [abs(t.start - when) for t, (_, when) in zip(said, spoken, strict=True)]
        # What lies in words are their phones, and what lies outside is silence.
        states = prep.states[prep.starts[u] : prep.starts[u + 1]]
        at = 0.01 * np.arange(len(states)) + 0.0125
        inside = [(at[:, None] > t.start) & (at[:, None] < t.end) for t in said]
        assert (np.concatenate(inside, axis=1).any(1) == (states >= silent)).all()
    assert np.median(errors) <= 0.015
    assert np.percentile(errors, 90) <= 0.030


def test_the_kit_comes_back(made: tuple[Path, Times, Prep, list[str]]) -> None:
    assets = DecodingAssets.read(made[2].path)
    assert assets.features is FeatureType.FBANK and assets.rate == RATE
    assert assets.lexicon.entries["io"] == [("I", "O"), ("I", "U")]
    assert 0.2 < assets.gmm_hmm.silence < 0.9
    assert assets.tuning_set is not None and len(assets.tuning_set.words) == 5
    assert (
        len(assets.tuning_set.network)
        == assets.tuning_set.starts[-1]
        == len(assets.tuning_set.gaussian)
    )
    assert abs(assets.tuning_set.network.mean()) < 0.01
    assert assets.language_model.order == 2


def test_speeds_are_other_speakers_and_leave_the_text_alone(
    made: tuple[Path, Times, Prep, list[str]], tmp_path: Path
) -> None:
    folder, times, plain, _ = made
    options = PrepareOptions(tying=TyingMethod.NONE, heldout=0.2, gaussians=60, perturb=True)
    prep = prepare(
        folder / "data", folder / "data" / "lexicon.txt", tmp_path / "prep", options, lambda _: None
    )
    assert len(prep.table.speakers) == 5 * 3 + 1
    assert len(prep.utterances_of(Part.HELDOUT)) == 5
    lengths = dict(zip(prep.table.id, np.diff(prep.starts).tolist(), strict=True))
    for name in times:
        if f"sp0.9-{name}" in lengths:
            assert lengths[f"sp0.9-{name}"] == pytest.approx(lengths[name] / 0.9, abs=2)
            assert lengths[f"sp1.1-{name}"] == pytest.approx(lengths[name] / 1.1, abs=2)
    for file in ("lm.arpa", "lm_tuning.arpa"):
        assert (prep.path / "speech" / file).read_text() == (
            plain.path / "speech" / file
        ).read_text()


def test_a_volume_is_an_offset_for_the_network_alone(
    made: tuple[Path, Times, Prep, list[str]], tmp_path: Path
) -> None:
    folder, times, plain, _ = made
    options = PrepareOptions(tying=TyingMethod.NONE, heldout=0.2, gaussians=60, volume=True)
    lexicon = folder / "data" / "lexicon.txt"
    prep = prepare(folder / "data", lexicon, tmp_path / "prep", options, lambda _: None)
    np.testing.assert_array_equal(prep.states, plain.states)
    factors = []
    for u in range(len(times)):
        rows = slice(*prep.starts[u : u + 2])
        offset = prep.frames[rows].astype(float) - plain.frames[rows].astype(float)
        # A log mel band of samples times f is that of the samples plus 2 log f.
        factors.append(np.exp(np.median(offset) / 2))
        assert np.abs(offset - np.median(offset)).max() < 0.05
    held = plain.utterances_of(Part.HELDOUT)
    assert all(factors[u] == 1 for u in held)
    drawn = np.delete(factors, held)
    assert drawn.min() > 0.12 and drawn.max() < 2.01 and drawn.std() > 0.3


def test_a_tree_may_only_add_states(
    made: tuple[Path, Times, Prep, list[str]], tmp_path: Path
) -> None:
    plain, data = made[2], tmp_path / "data"
    write_tones(data, speakers=3, utterances=4, seed=1)
    options = PrepareOptions(heldout=0.3, gaussians=60, states=30)
    prep = prepare(data, data / "lexicon.txt", tmp_path / "prep", options, lambda _: None)
    assert plain.header.states <= prep.header.states <= 30
    assert DecodingAssets.read(prep.path).gmm_hmm.tying.states == prep.header.states
    assert set(np.unique(prep.states)) <= set(range(prep.header.states))


def test_utterances_with_unknown_words_are_trained_on(tmp_path: Path) -> None:
    write_tones(tmp_path / "data", speakers=4, utterances=4, seed=5)
    lexicon = tmp_path / "data" / "lexicon.txt"
    lexicon.write_text(lexicon.read_text().replace("yeu Y E U\n", ""))
    text = (tmp_path / "data" / "text").read_text().splitlines()
    lacking = [line.split()[0] for line in text if "yeu" in line]
    preps = {}
    for oov in Oov:
        options = PrepareOptions(
            inputs=InputOptions(oov=oov), tying=TyingMethod.NONE, heldout=0.25, gaussians=40
        )
        lines: list[str] = []
        preps[oov] = prepare(
            tmp_path / "data", lexicon, tmp_path / oov.value, options, lines.append
        )
        assert any(f"in {len(lacking)} of 16 utterances" in s for s in lines) == (oov is Oov.MAP)
    kept, skipped = preps[Oov.MAP], preps[Oov.SKIP]
    assert 0 < len(lacking) < 16 and len(kept.table.id) == 16
    assert set(kept.table.id) - set(skipped.table.id) == set(lacking)
    # Noise has five states, and only where something is trained as noise.
    assert kept.header.states == skipped.header.states + 5
    words = {
        timed_word.word
        for said in read_ctm(kept.path / "words.ctm").values()
        for timed_word in said
    }
    assert words == {"aeo", "uya", "io", "<unk>"}


@pytest.mark.long
def test_the_same_again_and_with_two_processes(
    made: tuple[Path, Times, Prep, list[str]], tmp_path: Path
) -> None:
    folder, _, prep, _ = made
    options = PrepareOptions(tying=TyingMethod.NONE, heldout=0.2, gaussians=60, processes=2)
    again = prepare(
        folder / "data", folder / "data" / "lexicon.txt", tmp_path / "prep", options, lambda _: None
    )
    assert again.fingerprint == prep.fingerprint


def test_what_exists_is_not_overwritten(made: tuple[Path, Times, Prep, list[str]]) -> None:
    folder, _, prep, _ = made
    with pytest.raises(UserError, match="exists already"):
        prepare(
            folder / "data", folder / "data" / "lexicon.txt", prep.path, PrepareOptions(), print
        )


def test_a_broken_kit_is_one_line(
    made: tuple[Path, Times, Prep, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="prepare DATA"):
        DecodingAssets.read(tmp_path)
    (tmp_path / "speech").mkdir()
    for file in (made[2].path / "speech").iterdir():
        (tmp_path / "speech" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "speech" / "gaussians.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match="broken") as caught:
        DecodingAssets.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_phones_that_nobody_says_are_never_found(tmp_path: Path) -> None:
    write_tones(tmp_path / "data", speakers=3, utterances=4, seed=4)
    lexicon = tmp_path / "data" / "lexicon.txt"
    strange = "qa Q A\naeo Q\n!SIL SIL\n<unk> SPN\n"  # a word, another way to say one, noise
    lexicon.write_text(lexicon.read_text() + strange)
    lines: list[str] = []
    options = PrepareOptions(heldout=0.3, gaussians=30, tying=TyingMethod.NONE)
    assets = DecodingAssets.read(
        prepare(tmp_path / "data", lexicon, tmp_path / "p", options, lines.append).path
    )
    assert assets.lexicon.entries["aeo"] == [("A", "E", "O")]
    assert set(assets.lexicon.entries) == {"aeo", "uya", "io", "yeu", "!SIL"}
    assert {word for (word,) in assets.language_model.tables[0]} == {
        "aeo",
        "uya",
        "io",
        "yeu",
        BEGIN,
        END,
    }
    assert "Q" in assets.gmm_hmm.topology.phones  # the states of the PREP stay as they are
    assert any("2 words cannot be recognised, as <unk>" in line for line in lines)


def test_a_place_that_cannot_be_written_is_told_before_work_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot write to"),
        scratch_directory(tmp_path / "file" / "prep"),
    ):
        pass
    with scratch_directory(tmp_path / "new" / "prep") as scratch:
        (scratch / "some").write_text("thing")
    assert list((tmp_path / "new").iterdir()) == []


def test_many_phones_have_more_than_a_gaussian_a_state() -> None:
    few = Lexicon(entries={"yes": [("Y", "E", "S")]})
    assert monophone_gaussians(few) == 1000
    tones = Lexicon(entries={f"w{n}": [(f"A{n}", f"B{n}")] for n in range(200)})
    assert monophone_gaussians(tones) > 3 * Topology.initial(tones.phones).states


def test_guessed_pronunciations_are_as_good_as_those_of_the_lexicon(
    made: tuple[Path, Times, Prep, list[str]], tmp_path: Path
) -> None:
    """In the language of tones a letter is a phone, so nothing is lost with a word of it."""
    folder, _, whole, _ = made
    rows = (folder / "data" / "lexicon.txt").read_text().splitlines(keepends=True)
    (tmp_path / "lexicon.txt").write_text("".join(r for r in rows if not r.startswith("yeu ")))
    options = PrepareOptions(
        tying=TyingMethod.NONE, heldout=0.2, gaussians=60, inputs=InputOptions(oov=Oov.G2P)
    )
    lines: list[str] = []
    prep = prepare(
        folder / "data", tmp_path / "lexicon.txt", tmp_path / "prep", options, lines.append
    )
    assert prep.fingerprint == whole.fingerprint
    for file in sorted((whole.path / "speech").iterdir()):
        assert (prep.path / "speech" / file.name).read_bytes() == file.read_bytes(), file.name
    assert sum("from the spelling: 1," in s and "yeu (Y E U)" in s for s in lines) == 1
    assert not any("OUT OF VOCABULARY" in line for line in lines)
