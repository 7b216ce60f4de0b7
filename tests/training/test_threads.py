"""How many threads a learner of `unisono train` computes with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from unisono.config import load
from unisono.runs.directory import RunDirectory
from unisono.training.worker import Worker


@pytest.mark.parametrize(
    ("cores", "bound", "sets", "threads"),
    [
        (8, 8, [], 4),  # shared by two learners
        (8, 1, [], 1),  # as Open MPI binds a process
        (8, 1, ["threads=3"], 3),  # as the user wants
    ],
)
def test_a_learner_that_is_bound_has_no_more_threads_than_cores(
    cores: int,
    bound: int,
    sets: list[str],
    threads: int,
    prep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(bound)))
    small = ["learners=2", "network.hidden=[8]", "validation.on=none", "device=cpu", *sets]
    config = load(None, small, {"prep": str(prep)})
    Worker(RunDirectory.create(tmp_path / "run", config, resume=False), resume=False)
    assert torch.get_num_threads() == threads
