"""A journal gives back what was appended, also after a kill in the middle of a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.coordinator.journal import FileJournal, Journal, MemoryJournal, NoJournal, Operation

GROUPS: list[list[Operation]] = [
    [{"kind": "join", "who": "learner-0.0#0", "sequence": 0}],
    [
        {"kind": "commit", "ranges": [[0, 5], [7, 9]]},
        {"kind": "lost", "who": "learner-1.0#0", "reason": "silent for 10 s\nor so"},
    ],
    [{"kind": "failed", "traceback": 'a "quoted" line\n\tand ünicode'}],
]
ALL = [operation for group in GROUPS for operation in group]


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
    operation: Operation = {"kind": "commit", "ranges": [[0, 5]]}
    journal.append([operation])
    operation["ranges"][0][0] = 3
    assert list(journal.replay()) == [{"kind": "commit", "ranges": [[0, 5]]}]


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


def test_what_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    with pytest.raises(TypeError):
        journal.append([{"kind": "join", "who": object()}])
    assert list(journal.replay()) == []
    journal.close()
