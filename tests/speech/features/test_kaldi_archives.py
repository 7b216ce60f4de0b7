"""Archives against Kaldi's own code, and broken ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tones import write_tones
from unisono.speech.features.extractors import fbank, mfcc, to_cepstra
from unisono.speech.features.kaldi_archives import (
    BadArchiveError,
    KaldiFeatureReader,
    Pointer,
    read_matrix,
    read_vector,
    read_vectors,
    write_archive,
)
from unisono.speech.features.transforms import add_deltas
from unisono.speech.validation import InputOptions, validate_data

kaldi = pytest.importorskip("kaldi_native_io", reason="the dev extra is not installed")

RANDOM = np.random.default_rng(1)
MATRICES = {f"u{n}": RANDOM.normal(3, 5, (20 + n, 1 + 3 * n)).astype("f4") for n in range(1, 6)}
VECTORS = {f"u{n}": RANDOM.integers(0, 2000, 1 + 7 * n).astype("i4") for n in range(5)}


def pointers(scp: Path) -> dict[str, Pointer]:
    lines = scp.read_text().splitlines()
    return {line.split()[0]: Pointer.of(line.split(maxsplit=1)[1]) for line in lines}


def test_what_we_write_kaldi_reads(tmp_path: Path) -> None:
    ark, scp = tmp_path / "m.ark", tmp_path / "m.scp"
    write_archive(ark, scp, MATRICES.items())
    for specifier in (f"ark:{ark}", f"scp:{scp}"):
        with kaldi.SequentialFloatMatrixReader(specifier) as reader:
            read = {key: np.array(value) for key, value in reader}
        assert list(read) == list(MATRICES)
        assert all(np.array_equal(read[key], MATRICES[key]) for key in read)
    write_archive(tmp_path / "v.ark", tmp_path / "v.scp", VECTORS.items())
    with kaldi.RandomAccessInt32VectorReader(f"scp:{tmp_path / 'v.scp'}") as table:
        assert all(np.array_equal(table[key], VECTORS[key]) for key in VECTORS)


@pytest.mark.parametrize("options", ["ark", "ark,t"])
def test_what_kaldi_writes_we_read(tmp_path: Path, options: str) -> None:
    for name, writer, values in (
        ("m", kaldi.FloatMatrixWriter, MATRICES),
        ("d", kaldi.DoubleMatrixWriter, MATRICES),
        ("v", kaldi.Int32VectorWriter, VECTORS),
    ):
        ark, scp = tmp_path / f"{name}.ark", tmp_path / f"{name}.scp"
        form = options.replace("ark", "ark,scp")
        with writer(f"{form}:{ark},{scp}") as out:
            for key, value in values.items():
                out[key] = {"m": value, "d": value.astype("f8"), "v": value.tolist()}[name]
        for key, pointer in pointers(scp).items():
            if name == "v":
                assert np.array_equal(read_vector(pointer), values[key])
            else:
                assert np.allclose(read_matrix(pointer), values[key], rtol=1e-5)
    for key, vector in read_vectors(tmp_path / "v.ark"):
        assert np.array_equal(vector, VECTORS[key])
    assert [key for key, _ in read_vectors(tmp_path / "v.ark")] == list(VECTORS)


@pytest.mark.parametrize(
    "method", ["kSpeechFeature", "kTwoByteAuto", "kOneByteAuto", "kTwoByteSignedInteger"]
)
def test_compressed_matrices_as_kaldi_expands_them(tmp_path: Path, method: str) -> None:
    ark, scp = tmp_path / "c.ark", tmp_path / "c.scp"
    chosen = getattr(kaldi.CompressionMethod, method)
    with kaldi.CompressedMatrixWriter(f"ark,scp:{ark},{scp}") as out:
        for key, value in MATRICES.items():
            out.write(key, value, chosen)
    with kaldi.SequentialFloatMatrixReader(f"ark:{ark}") as reader:
        expected = {key: np.array(value) for key, value in reader}
    for key, pointer in pointers(scp).items():
        assert np.allclose(read_matrix(pointer), expected[key], rtol=1e-5, atol=1e-5)


def test_parts_of_a_matrix(tmp_path: Path) -> None:
    write_archive(tmp_path / "m.ark", tmp_path / "m.scp", MATRICES.items())
    line = (tmp_path / "m.scp").read_text().splitlines()[4].split()[1]
    own = MATRICES["u5"]
    assert np.array_equal(read_matrix(Pointer.of(f"{line}[3:7]")), own[3:8])
    assert np.array_equal(read_matrix(Pointer.of(f"{line}[0:24,2:5]")), own[:, 2:6])
    with pytest.raises(BadArchiveError, match="range"):
        read_matrix(Pointer.of(f"{line}[20:25]"))


def test_promises_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    size = np.int32(2**31 - 1).tobytes()
    for content in (
        b"\0BFM \4" + size + b"\4" + size + b"abc",
        b"\0BCM " + 8 * b"\0" + size + size,
        b"\0B\4" + size,
        b"\0BPKL x",
        b"\0B",
        b"",
        b" [ 1 2\n 3 ]",
        b" [ 1 2\n 3 4",
    ):
        path = tmp_path / "bad.ark"
        path.write_bytes(content)
        with pytest.raises(BadArchiveError, match=r"bad\.ark:0: .") as caught:
            read_matrix(Pointer.of(f"{path}:0"))
        assert "\n" not in str(caught.value)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_archives_are_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    ark, scp = tmp_path / "m.ark", tmp_path / "m.scp"
    whole = data.draw(st.sampled_from([MATRICES, VECTORS]))
    write_archive(ark, scp, whole.items())
    places, content = pointers(scp), bytearray(ark.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        near = data.draw(st.sampled_from([p.offset for p in places.values()]))
        at = min(near + data.draw(st.integers(-5, 20)), len(content) - 1)
        content[at] = data.draw(st.integers(0, 255))
    ark.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for pointer in places.values():
        for read in (read_matrix, read_vector):
            try:
                read(pointer)
            except BadArchiveError as error:
                assert str(error).startswith(f"{ark}:{pointer.offset}: ")
                assert "\n" not in str(error)
    try:
        list(read_vectors(ark))
    except BadArchiveError as error:
        assert str(error).startswith(f"{ark}: damaged at byte ") and "\n" not in str(error)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    """kaldiio's own reader would run what such an object says."""
    (tmp_path / "evil.ark").write_bytes(b"PKL" + pickle.dumps(MATRICES))
    with pytest.raises(BadArchiveError):
        read_matrix(Pointer.of(f"{tmp_path / 'evil.ark'}:0"))


def test_a_text_matrix_may_begin_with_a_whole_number(tmp_path: Path) -> None:
    (tmp_path / "t.ark").write_bytes(b"a  [\n  3 0.5 \n  1e-05 -2 ]\nb 4 5\n")
    read = read_matrix(Pointer.of(f"{tmp_path / 't.ark'}:2"))
    np.testing.assert_array_equal(read, np.array([[3, 0.5], [1e-05, -2]], dtype=np.float32))
    (tmp_path / "v.ark").write_bytes(b"b 4 5\nc 7")
    assert [(n, v.tolist()) for n, v in read_vectors(tmp_path / "v.ark")] == [
        ("b", [4, 5]),
        ("c", [7]),
    ]


def test_features_of_others_are_taken_for_what_they_are(tmp_path: Path) -> None:
    write_tones(tmp_path / "audio", speakers=2, utterances=2, seed=3)
    extracted = {}
    for file in sorted((tmp_path / "audio").glob("*.wav")):
        samples, rate = soundfile.read(file, dtype="int16")
        extracted[file.stem] = samples.astype(np.float64), rate
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
        matrices = {key: make(*audio).astype(np.float32) for key, audio in extracted.items()}
        write_archive(folder / "feats.ark", folder / "feats.scp", matrices.items())
        reader = validate_data(folder, InputOptions(), None, archives=True).reader
        assert isinstance(reader, KaldiFeatureReader)
        assert reader.bands == (name == "bands")
        for key, matrix in matrices.items():
            found = to_cepstra(matrix, bands=reader.bands)
            assert found.shape[1] == 13
            if not reader.bands:
                np.testing.assert_array_equal(found, matrix[:, :13])
            else:
                # Liftering and C0 aside, cepstra of 40 bands are the cosine transform of them.
                lifter = 1 + 11 * np.sin(np.pi * np.arange(13) / 22)
                wanted = mfcc(*extracted[key], bands=40, energy=False) / lifter
                np.testing.assert_allclose(found, wanted, atol=2e-3)
