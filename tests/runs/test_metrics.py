from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import UserError
from unisono.runs import Event, cut_torn_line, format_event, read_metrics
from unisono.runs.metrics import began_at

EVENTS: list[Event] = [
    {"event": "start", "time": 0.0, "learner": None, "lines": ["a\nb", "ü"]},
    {"event": "train", "time": 1.25, "learner": 0, "loss": 2.5, "examples": 256},
    {"event": "lost", "time": 2, "learner": 1, "reason": 'said "}" and left'},
    {"event": "end", "time": 3.5, "learner": None, "ended": "finished"},
]
LINES = [format_event(event) for event in EVENTS]
TEXT = b"".join(LINES)


def test_events_read_back(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(TEXT)
    assert read_metrics(file) == EVENTS
    assert TEXT.count(b"\n") == len(EVENTS)


@given(st.integers(0, len(TEXT)))
def test_a_kill_at_any_byte_loses_the_torn_line_alone(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "killed.jsonl"
    file.write_bytes(TEXT[:length])
    ends = [sum(map(len, LINES[: i + 1])) for i in range(len(LINES))]
    whole = sum(end - 1 <= length for end in ends)  # the line end alone may be missing
    assert read_metrics(file) == EVENTS[:whole]
    cut_torn_line(file)
    with file.open("ab") as appended:
        appended.write(LINES[0])
    assert read_metrics(file) == [*EVENTS[:whole], EVENTS[0]]


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"tr',
        b"[1]",
        b"",
        b"\xff\xfe",
        b'{"event":"train","time":1}',
        b'{"event":"train","learner":1}',
        b'{"event":3,"time":1,"learner":1}',
    ],
)
def test_a_bad_line_elsewhere_is_told_with_its_number(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(LINES[0] + LINES[1] + line + b"\n" + LINES[3])
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 3: "):
        read_metrics(file)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_metrics(tmp_path / "none")


def test_lines_are_json_without_nan() -> None:
    line = format_event({"event": "train", "loss": math.nan, "more": [math.inf, {"x": -math.inf}]})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    event = json.loads(line, parse_constant=refuse)
    assert event == {"event": "train", "loss": None, "more": [None, {"x": None}]}


def test_training_began_when_all_first_learners_were_there_or_when_the_others_began() -> None:
    def told(name: str, time: float) -> dict[str, Any]:
        return {"event": name, "time": time, "learner": 0}

    together = [told("joined", 3.0), told("joined", 5.0), told("train", 6.0), told("joined", 9.0)]
    assert began_at(together, 2) == 5.0
    late = [told("joined", 3.0), told("train", 64.0), told("train", 65.0), told("joined", 90.0)]
    assert began_at(late, 2) == 64.0
    assert began_at([], 2) == 0.0
