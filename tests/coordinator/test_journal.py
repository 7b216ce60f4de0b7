"""A journal gives back what was appended, also after a kill in the middle of a write."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from unisono.coordinator.journal import FileJournal, Journal, MemoryJournal, NoJournal
from unisono.coordinator.messages import (
    Command,
    Commit,
    Failed,
    Join,
    LossReason,
    Lost,
)
from unisono.errors import Cause
from unisono.fabric import Malformed, learner

GROUPS = [
    [Command(learner(0), Join("unix:here"), 0, "session")],
    [
        Command(learner(0), Commit({learner(0): ((0, 5), (7, 9)), learner(1): ()}), 1),
        Command(learner(1), Lost(LossReason.SILENT, 10.0)),
    ],
    [Command(learner(0), Failed(Cause.EXCEPTION, 'a "quoted" line\n\tand ünicode'), 2)],
]
ALL = [command for group in GROUPS for command in group]


def filled(journal: Journal) -> Journal:
    for group in GROUPS:
        journal.append(group)
    return journal


def test_it_gives_back_what_was_appended(tmp_path: Path) -> None:
    assert list(filled(MemoryJournal()).replay()) == ALL
    path = tmp_path / "journal"
    journal = FileJournal(path)
    assert list(filled(journal).replay()) == ALL
    journal.close()
    again = FileJournal(path)
    assert list(again.replay()) == ALL
    again.append(GROUPS[0])
    assert list(again.replay()) == [*ALL, *GROUPS[0]]
    again.close()


def test_it_keeps_copies() -> None:
    journal = MemoryJournal()
    notes = {learner(0): ((0, 5),)}
    journal.append([Command(learner(0), Commit(notes), 0)])
    notes[learner(0)] = ((3, 5),)
    assert list(journal.replay()) == [Command(learner(0), Commit({learner(0): ((0, 5),)}), 0)]


def test_a_torn_end_is_cut_wherever_the_kill_came(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    journal = FileJournal(whole)
    filled(journal)
    journal.close()
    data = whole.read_bytes()
    for size in range(len(data) + 1):
        path = tmp_path / f"torn{size}"
        path.write_bytes(data[:size])
        torn = FileJournal(path)
        kept = data[:size].count(b"\n")
        assert list(torn.replay()) == ALL[:kept]
        torn.append(GROUPS[0])
        assert list(torn.replay()) == [*ALL[:kept], *GROUPS[0]]
        torn.close()


def test_a_journal_for_one_process_keeps_nothing() -> None:
    assert list(filled(NoJournal()).replay()) == []


def test_a_line_that_is_no_operation_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"kind":"command","who":"learner-0.0#0","operation":{"kind":"joyn"}}\n')
    journal = FileJournal(path)
    with pytest.raises(Malformed, match="joyn"):
        list(journal.replay())
    journal.close()


def test_a_group_that_the_disk_takes_in_part_is_taken_back(tmp_path: Path) -> None:
    """Wherever the disk is full; and the same group can be written when there is room."""
    path = tmp_path / "journal"
    journal = FileJournal(path)
    journal.append(GROUPS[0])
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in range(0, 40, 3):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                journal.append(GROUPS[1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.stat().st_size == size
        assert list(journal.replay()) == GROUPS[0]
    journal.append(GROUPS[1])
    assert list(journal.replay()) == [*GROUPS[0], *GROUPS[1]]
    journal.close()


def test_what_could_not_be_taken_back_is_taken_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.append(GROUPS[0])

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        broken.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="Input/output error"):
            journal.append(GROUPS[1])
    journal.append(GROUPS[2])
    assert list(journal.replay()) == [*GROUPS[0], *GROUPS[2]]
    journal.close()


SNAPSHOT = {"state": ["set", [1, 2]], "text": "ü\n"}


def test_a_compacted_journal_gives_back_the_snapshot_and_what_came_after(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(path)
    for kept in (journal, MemoryJournal()):
        assert filled(kept).snapshot is None
        kept.compact(SNAPSHOT)
        assert kept.snapshot == SNAPSHOT and list(kept.replay()) == []
        kept.append(GROUPS[1])
        assert kept.snapshot == SNAPSHOT and list(kept.replay()) == GROUPS[1]
    journal.close()
    again = FileJournal(path)
    again.append(GROUPS[2])
    assert again.snapshot == SNAPSHOT and list(again.replay()) == [*GROUPS[1], *GROUPS[2]]
    again.compact({"later": 1})
    assert again.snapshot == {"later": 1} and list(again.replay()) == []
    assert os.listdir(tmp_path) == ["journal"]
    again.close()


def test_it_is_long_when_it_has_grown_several_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.coordinator.journal.LEAST_BYTES", 1000)
    journal = FileJournal(tmp_path / "journal")
    while not journal.is_long:
        journal.append(GROUPS[1])
    assert 1000 < (tmp_path / "journal").stat().st_size < 1500
    journal.compact("x" * 2000)
    for kept in (journal, FileJournal(tmp_path / "journal")):
        assert not kept.is_long
    while not journal.is_long:
        journal.append(GROUPS[1])
    assert (tmp_path / "journal").stat().st_size > 8000
    journal.close()


class Killed(BaseException):
    """The process is gone."""


STEPS = ["open", "write", "fsync", "replace", "sync of the directory"]


@pytest.mark.parametrize("before", STEPS)
def test_a_kill_at_any_step_of_compacting_leaves_a_whole_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    journal = filled(FileJournal(tmp_path / "journal"))
    calls = {"fsync": 0}
    fsync = os.fsync

    def killed(*_: object, **__: object) -> None:
        raise Killed

    def on_fsync(file: int) -> None:
        calls["fsync"] += 1
        if calls["fsync"] == (1 if before == "fsync" else 2):
            raise Killed
        fsync(file)

    class Torn:
        """Takes half of the data."""

        def __init__(self, path: Path) -> None:
            self._path = path

        def __enter__(self) -> Torn:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def write(self, data: bytes) -> None:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT)
            os.write(file, data[: len(data) // 2])
            os.close(file)
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        if before == "open":
            patch.setattr(Path, "open", killed)
        elif before == "write":
            patch.setattr(Path, "open", lambda path, mode: Torn(path))
        elif before == "replace":
            patch.setattr(Path, "replace", killed)
        else:
            patch.setattr(os, "fsync", on_fsync)
        journal.compact(SNAPSHOT)
    again = FileJournal(tmp_path / "journal")
    if before == "sync of the directory":
        assert again.snapshot == SNAPSHOT and list(again.replay()) == []
    else:
        assert again.snapshot is None and list(again.replay()) == ALL
    assert os.listdir(tmp_path) == ["journal"]
    again.append(GROUPS[1])
    assert list(again.replay())[-2:] == GROUPS[1]
    again.close()


def test_a_disk_that_is_full_keeps_the_old_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(tmp_path / "journal")
    filled(journal)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        journal.compact(SNAPSHOT)
    assert journal.snapshot is None and list(journal.replay()) == ALL
    journal.append(GROUPS[0])
    assert list(journal.replay()) == [*ALL, *GROUPS[0]]
    assert os.listdir(tmp_path) == ["journal"]
    journal.compact(SNAPSHOT)
    assert journal.snapshot == SNAPSHOT
    journal.close()
