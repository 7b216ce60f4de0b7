"""Coverage from logs: of two versions of a sync round the one counts that somebody went on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.learner_logs import read_logs


def write(path: Path, who: str, *lines: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps({"who": who, **line}) + "\n" for line in lines))


def test_what_only_a_refused_learner_saw_does_not_count(tmp_path: Path) -> None:
    both, alone = {"a": [[0, 1]], "b": [[1, 2]]}, {"a": [[0, 1]]}
    write(tmp_path / "b.log", "b", {"trained": [[1, 2]]}, {"sync_round": 5, "notes": both})
    write(
        tmp_path / "a.log",
        "a",
        {"trained": [[0, 2]]},
        {"sync_round": 5, "notes": alone},
        {"sync_round": 6, "notes": {"a": [[1, 2]]}},
    )
    coverage = read_logs(tmp_path)
    assert coverage.problems(2) == []
    assert coverage.redone == [1]


def test_what_is_shared_twice_or_by_nobody_is_told(tmp_path: Path) -> None:
    notes = {"a": [[0, 1]]}
    write(
        tmp_path / "a.log",
        "a",
        {"trained": [[0, 1]]},
        {"sync_round": 0, "notes": notes},
        {"sync_round": 1, "notes": notes},
    )
    problems = read_logs(tmp_path).problems(2)
    assert "position 0 was shared twice: [0, 1]" in problems
    assert "position 1 was shared by nobody" in problems
    write(tmp_path / "b.log", "b", {"notes": {"a": [[1, 2]]}}, {"notes": {"b": [[1, 2]]}})
    assert any("position 1 was shared twice" in p for p in read_logs(tmp_path).problems(2))
