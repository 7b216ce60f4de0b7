"""PREP: a prepared corpus in a directory, readable with numpy alone (docs/reference/prep.md)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.data.corpus import Corpus
from unisono.data.layout import (
    FORMAT_VERSION,
    HEADER_FILE,
    TABLE_FILE,
    Header,
    UtteranceTable,
    broken,
    fingerprint,
    map_array,
    read_header,
    read_table,
)
from unisono.data.split import Part
from unisono.errors import UserError


@dataclass(frozen=True, eq=False, kw_only=True)
class Prep:
    """An open PREP of N frames of dimension D in U utterances by K speakers, with S states.

    Without an alignment S is 0, and the state of each frame is given as 0. Without phones each
    utterance has none.

    Attributes:
        path: Its directory.
        header: What prep.json says.
        table: What utterances.json says: id, part and speaker of each utterance, and the names.
        frames: N x D float16 or float32, mapped from disk, not normalised.
        states: N int16 or int32, mapped from disk.
        starts: U + 1 int64: utterance u is frames starts[u] to starts[u + 1] - 1.
        labels: int16: the phones of all utterances, from 1.
        label_starts: U + 1 int64: utterance u has labels from label_starts[u] on, up to that of the
            next one.
        priors: S float32: log share of each state among the train frames.
        speaker_mean: K x D float32.
        speaker_std: K x D float32.
    """

    path: Path
    header: Header
    table: UtteranceTable
    frames: NDArray[Any]
    states: NDArray[Any]
    starts: NDArray[np.int64]
    labels: NDArray[np.int16]
    label_starts: NDArray[np.int64]
    priors: NDArray[np.float32]
    speaker_mean: NDArray[np.float32]
    speaker_std: NDArray[np.float32]

    @classmethod
    def open(cls, path: Path) -> Prep:
        """Opens a PREP; checks every header, length, table and state, and reads no frame.

        Raises:
            UserError: There is none at `path`, it lacks a file, a file is torn or does not fit
                the others, or another version wrote it.
        """
        header = read_header(path)
        expected = header.arrays()
        mapped = {name: map_array(path, name, *expected[name]) for name in expected}
        aligned = mapped.pop("states", np.broadcast_to(np.zeros(1, np.int16), header.frames))
        large = {"frames": mapped.pop("frames"), "states": aligned}
        small = {name: np.array(array) for name, array in mapped.items()}
        small.setdefault("priors", np.zeros(0, np.float32))
        small.setdefault("labels", np.zeros(0, np.int16))
        small.setdefault("label_starts", np.zeros(header.utterances + 1, np.int64))
        prep = cls(path=path, header=header, table=read_table(path), **large, **small)
        prep._check_tables()
        prep._check_values()
        return prep

    @property
    def fingerprint(self) -> str:
        """The sha256 that prep.json gives for the arrays and tables: equal data, equal text."""
        return self.header.fingerprint

    @property
    def frame_shift(self) -> timedelta | None:
        """The time from frame to frame, where it is known."""
        seconds = self.header.frame_shift_s
        return None if seconds is None else timedelta(seconds=seconds)

    def speakers_of(self, part: Part) -> list[str]:
        """The speaker of each of its utterances."""
        table = self.table
        return [table.speakers[table.speaker[u]] for u in self.utterances_of(part)]

    def utterances_of(self, part: Part) -> NDArray[np.int64]:
        """The numbers of the utterances of a part, rising."""
        return np.flatnonzero([of is part for of in self.table.part])

    def frames_of(self, part: Part) -> int:
        """How many frames a part has."""
        numbers = self.utterances_of(part)
        return int((self.starts[numbers + 1] - self.starts[numbers]).sum())

    def joined(self) -> Prep:
        """The same with the held-out utterances among those to train on."""
        parts = [Part.TRAIN if part is Part.HELDOUT else part for part in self.table.part]
        return replace(self, table=self.table.model_copy(update={"part": parts}))

    def verify(self) -> None:
        """Computes the fingerprint again from everything on disk.

        Raises:
            UserError: It is not the one that prep.json gives.
        """
        arrays = {name: getattr(self, name) for name in self.header.arrays()}
        if fingerprint(arrays, self.table, self.header.frame_shift_s) != self.fingerprint:
            raise broken(self.path, f"its contents have not the fingerprint in {HEADER_FILE}")

    def _check_tables(self) -> None:
        header, starts, table = self.header, self.starts, self.table
        if starts[0] != 0 or starts[-1] != header.frames or (starts[1:] <= starts[:-1]).any():
            raise broken(self.path, "starts.npy does not rise from 0 to the number of frames")
        lengths = {len(table.id), len(table.speaker), len(table.part)}
        if lengths != {header.utterances} or len(table.speakers) != header.speakers:
            raise broken(self.path, f"{TABLE_FILE} has other lengths than {HEADER_FILE} says")
        if max(table.speaker) >= header.speakers:
            raise broken(self.path, f"{TABLE_FILE} names a speaker that has no row")
        if len(set(table.id)) < len(table.id):
            raise broken(self.path, f"{TABLE_FILE} has an utterance twice")

    def _check_values(self) -> None:
        """Checks the numbers that training would fail on, or silently diverge with."""
        low, high = int(self.states.min()), int(self.states.max())
        if self.header.states and (low < 0 or high >= self.header.states):
            raise broken(
                self.path,
                f"states.npy has states from {low} to {high}, and {HEADER_FILE} says "
                f"0 to {self.header.states - 1}",
            )
        starts, labels = self.label_starts, self.labels
        if starts[0] != 0 or starts[-1] != len(labels) or (starts[1:] < starts[:-1]).any():
            raise broken(self.path, "label_starts.npy does not rise from 0 to the number of labels")
        if len(labels) and not 1 <= labels.min() <= labels.max() <= self.header.phones:
            raise broken(self.path, f"labels.npy has phones outside 1..{self.header.phones}")
        for name in ("priors", "speaker_mean", "speaker_std"):
            if not np.isfinite(getattr(self, name)).all():
                raise broken(self.path, f"{name}.npy has numbers that are not finite")
        if (self.speaker_std <= 0).any():
            raise broken(self.path, "speaker_std.npy has standard deviations of zero or less")


def write_prep(
    path: Path,
    corpus: Corpus,
    made_by: Mapping[str, JsonValue],
    *,
    beside: Mapping[str, bytes] | None = None,
) -> Prep:
    """Writes a PREP as a whole or not at all.

    It is written to a hidden sibling of `path`, forced to disk and renamed, so that a PREP under
    its own name is complete whenever the machine stops.

    Args:
        path: The directory to make; its parents are made as needed.
        corpus: What to write; checked first.
        made_by: What made it, for prep.json: the settings that would make it again.
        beside: Small files that decoding needs, by their names within the directory.

    Returns:
        The new PREP, opened.

    Raises:
        UserError: `path` exists or cannot be written, or the corpus is not in order.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} exists already: choose another place or remove it first")
    corpus.check()
    arrays, table = _contents(corpus)
    shift_s = None if corpus.frame_shift is None else corpus.frame_shift.total_seconds()
    header = Header(
        format_version=FORMAT_VERSION,
        made_by={"origin": corpus.origin, **made_by},
        frames=len(corpus.frames),
        dimension=corpus.frames.shape[1],
        states=corpus.state_count,
        utterances=len(table.id),
        speakers=len(table.speakers),
        frame_type=arrays["frames"].dtype.name,
        state_type=_state_type(corpus),
        frame_shift_s=shift_s,
        phones=corpus.phones,
        labels=len(arrays.get("labels", ())),
        fingerprint=fingerprint(arrays, table, shift_s),
    )
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir(parents=True)
        for name, array in arrays.items():
            with _durable(partial / f"{name}.npy") as file:
                np.save(file, array)
        for name, model in ((TABLE_FILE, table), (HEADER_FILE, header)):
            with _durable(partial / name) as file:
                file.write(json.dumps(model.model_dump(mode="json"), indent=1).encode() + b"\n")
        for name, content in (beside or {}).items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            with _durable(partial / name) as file:
                file.write(content)
        _sync_directory(partial)
        partial.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise UserError(f"cannot write PREP {path}: {error}; choose another place") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Prep.open(path)


def _contents(corpus: Corpus) -> tuple[dict[str, NDArray[Any]], UtteranceTable]:
    """The arrays and the table that a corpus makes, in the types of the format."""
    names = corpus.speaker_names()
    rows = {name: row for row, name in enumerate(names)}
    mean, std = corpus.speaker_moments()
    arrays = {
        "frames": np.ascontiguousarray(corpus.frames),
        "starts": corpus.starts.astype(np.int64),
        "speaker_mean": mean,
        "speaker_std": std,
    }
    if corpus.state_count:
        arrays["states"] = corpus.states.astype(_state_type(corpus))
        arrays["priors"] = corpus.log_priors()
    if corpus.phones:
        arrays["labels"] = np.concatenate(corpus.labels).astype(np.int16)
        arrays["label_starts"] = np.cumsum([0, *map(len, corpus.labels)]).astype(np.int64)
    table = UtteranceTable(
        speakers=names,
        id=list(corpus.utterances),
        speaker=[rows[name] for name in corpus.speakers],
        part=list(corpus.parts),
    )
    return arrays, table


def _state_type(corpus: Corpus) -> Literal["int16", "int32"]:
    return "int16" if corpus.state_count <= np.iinfo(np.int16).max + 1 else "int32"


@contextmanager
def _durable(path: Path) -> Iterator[IO[bytes]]:
    """A new file that is on disk when the block ends."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Forces the names in a directory to disk: a file's own fsync does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
