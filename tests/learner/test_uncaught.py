"""Tracebacks say which learner they are of, whoever has started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = "from unisono.learner.uncaught import install; install(); 1 / 0"


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        ({"UNISONO_LEARNER": "3"}, "[learner 3] "),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "[learner 1] "),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            "[learner 2] ",
            marks=pytest.mark.long,
        ),
        pytest.param({"PMI_RANK": "1", "PMI_SIZE": "2"}, "[learner 1] ", marks=pytest.mark.long),
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, "", marks=pytest.mark.long),
        ({"RANK": "x", "WORLD_SIZE": "2"}, ""),
    ],
)
def test_the_learner_stands_before_each_line(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], prefix: str
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[-1] == f"{prefix}ZeroDivisionError: division by zero"
    assert all(line.startswith(prefix) for line in lines)
