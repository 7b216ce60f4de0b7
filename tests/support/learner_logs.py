"""Coverage from the learners' own logs: an independent check of the coordinator's books.

Each learner writes down what it trained, what it skipped, and what went into every sync round that
it saw completed, or into every model that it took in. From these lines alone: every position must
be in exactly one sync round (or in models by the steps of exactly one learner, or be skipped); what
was trained more often was redone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class LogCoverage:
    """What the logs of a run say about each position."""

    trained: Counter[int] = field(default_factory=Counter)
    shared: dict[int, set[int | str]] = field(default_factory=dict)
    """The sync rounds that contain a position; without rounds: whose steps on it were shared."""
    kept: set[int] = field(default_factory=set)
    """Positions that a learner alone committed or skipped."""

    def problems(self, total: int) -> list[str]:
        """What is wrong, in words; nothing if every position counts exactly once."""
        found = []
        for position in range(total):
            sync_rounds = self.shared.get(position, set())
            if not sync_rounds and position not in self.kept:
                found.append(f"position {position} was shared by nobody")
            if len(sync_rounds) > 1:
                found.append(f"position {position} was shared twice: {sorted(sync_rounds)}")
            if not self.trained[position] and position not in self.kept:
                found.append(f"position {position} was never trained")
        return found

    @property
    def redone(self) -> list[int]:
        """Positions that were trained more than once."""
        return sorted(p for p, count in self.trained.items() if count > 1)


def read_logs(folder: Path) -> LogCoverage:
    """Reads all logs in a folder; a torn last line is what a kill leaves, and is passed over.

    One that was killed, or stopped and then refused, may have seen a sync round complete that the
    others had to do again without it. Of two versions of a sync round that counts which was seen by
    somebody who came further.
    """
    coverage = LogCoverage()
    versions: dict[int, dict[str, int]] = {}
    lines = [line for path in sorted(folder.glob("*.log")) for line in _lines(path)]
    last: Counter[str] = Counter()
    for line in lines:
        last[line["who"]] = max(last[line["who"]], line.get("sync_round", 0))
    for line in lines:
        for position in _positions(line.get("trained", [])):
            coverage.trained[position] += 1
        for position in _positions(line.get("committed", []) + line.get("skipped", [])):
            coverage.kept.add(position)
        if "sync_round" in line:
            version = json.dumps(line["notes"], sort_keys=True)
            seen = versions.setdefault(line["sync_round"], {})
            seen[version] = max(seen.get(version, 0), last[line["who"]])
        else:
            for owner, ranges in line.get("notes", {}).items():
                for position in _positions(ranges):
                    coverage.shared.setdefault(position, set()).add(owner)
    for number, seen in versions.items():
        for ranges in json.loads(max(seen, key=lambda version: seen[version])).values():
            for position in _positions(ranges):
                coverage.shared.setdefault(position, set()).add(number)
    return coverage


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield json.loads(line)


def _positions(ranges: list[list[int]]) -> Iterator[int]:
    for start, stop in ranges:
        yield from range(start, stop)
