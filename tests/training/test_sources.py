"""Learners that are forks of one process share the data that it has read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from unisono.config import Config, load
from unisono.data import Part
from unisono.runs.directory import RunDirectory
from unisono.training import worker
from unisono.training.sources import inherited, read_before_forks
from unisono.training.worker import Worker


@pytest.fixture
def run(prep: Path, tmp_path: Path) -> RunDirectory:
    sets = ["network.hidden=[8]", "device=cpu", "threads=1", "learners=2"]
    return RunDirectory.create(tmp_path / "run", load(None, sets, {"prep": str(prep)}))


@pytest.fixture
def config(run: RunDirectory) -> Config:
    return run.read_config()


def test_a_fork_reads_nothing(
    run: RunDirectory, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the data is read again")

    expected = Worker(run, resume=False)._source(Part.TRAIN)
    with read_before_forks(run, config):
        child = os.fork()
        if child == 0:
            try:
                monkeypatch.setattr(worker, "source_of", refuse)
                found = Worker(run, resume=False)._source(Part.TRAIN)
                indices = torch.randperm(len(found))[:20].numpy()
                pairs = zip(found.batch(indices), expected.batch(indices), strict=True)
                os._exit(0 if all(torch.equal(a, b) for a, b in pairs) else 3)
            except BaseException:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        monkeypatch.setattr(worker, "source_of", refuse)
        other = RunDirectory.create(run.path.parent / "other", config)
        with pytest.raises(AssertionError, match="read again"):
            Worker(other, resume=False)
    assert inherited(run) == {}
    with pytest.raises(AssertionError, match="read again"):
        Worker(run, resume=False)


@pytest.mark.parametrize("wanted", [True, False])
def test_speakers_held_out_are_read_where_they_are_checked(run: RunDirectory, wanted: bool) -> None:
    sets = [f"validation.enabled={str(wanted).lower()}"]
    config = load(None, sets, {"prep": run.read_config().prep})
    with read_before_forks(run, config):
        assert set(inherited(run)) == ({Part.TRAIN, Part.HELDOUT} if wanted else {Part.TRAIN})
