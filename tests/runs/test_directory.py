from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from unisono.config import Config
from unisono.errors import UserError
from unisono.runs import RunDirectory, read_metrics, write_atomically
from unisono.runs.directory import ROOM_NEEDED

WHOLE = b'{"event":"start","time":0,"learner":null}\n'


def refusal(path: Path, *, resume: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        RunDirectory.create(path, Config(), resume=resume)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_are_as_promised(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "deep" / "run", Config(seed=4))
    promised = {
        "config.toml": run.config,
        "metrics.jsonl": run.metrics,
        "summary.json": run.summary,
        "model.safetensors": run.model,
        "model.json": run.model_description,
        "checkpoints": run.checkpoints,
        "report.html": run.report,
        "logs": run.logs,
        "logs/learner-3.log": run.log(3),
    }
    assert promised == {name: tmp_path / "deep" / "run" / name for name in promised}
    assert sorted(os.listdir(run.path)) == ["checkpoints", "config.toml", "logs"]
    assert RunDirectory.open(run.path).read_config() == Config(seed=4)
    assert run.read_summary() is None
    assert run.read_metrics() == []


def test_a_path_that_exists_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", Config(seed=1))
    assert "--resume" in refusal(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").read_config().seed == 1
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert "exists already" in refusal(tmp_path / "dangling")


def test_resume_keeps_what_is_there_and_cuts_the_torn_line(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", Config(epochs=1))
    run.metrics.write_bytes(WHOLE + b'{"event":"tra')
    (run.checkpoints / "one").write_text("kept")
    again = RunDirectory.create(tmp_path / "run", Config(epochs=2), resume=True)
    assert again.read_config().epochs == 2
    assert run.metrics.read_bytes() == WHOLE
    assert (run.checkpoints / "one").read_text() == "kept"


def test_resume_takes_a_new_path_but_no_folder_of_another_kind(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "new", Config(), resume=True).config.is_file()
    (tmp_path / "empty").mkdir()
    assert RunDirectory.create(tmp_path / "empty", Config(), resume=True).config.is_file()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    assert "not a run" in refusal(tmp_path / "photos", resume=True)
    assert "not a run" in refusal(tmp_path / "photos" / "cat.jpg", resume=True)
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]


def test_parents_must_be_folders_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a directory" in refusal(tmp_path / "file" / "run")
    assert "File name too long" in refusal(tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not writable" in refusal(tmp_path / "a" / "run")
    assert not (tmp_path / "a").exists()


def test_a_full_disk_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, ROOM_NEEDED - 1))
    assert "199 MB are free, 200 MB are needed" in refusal(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no config\.toml"):
        RunDirectory.open(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        RunDirectory.open(tmp_path / "none")


def test_a_broken_summary_names_the_file(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", Config())
    run.summary.write_text('{"strategy": ')
    with pytest.raises(UserError, match=r"summary\.json is not a summary") as caught:
        run.read_summary()
    assert "\n" not in str(caught.value)


def test_write_atomically_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    write_atomically(file, b"old")
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["model.json"]
    (tmp_path / "plain").touch()
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_data_is_on_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    replace, fsync = os.replace, os.fsync

    def see_fsync(number: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{number}"))
        calls.append("folder" if target == tmp_path else "data")
        fsync(number)

    def see_replace(old: Path, new: Path) -> None:
        calls.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", see_fsync)
    monkeypatch.setattr(os, "replace", see_replace)
    write_atomically(tmp_path / "file", b"data")
    assert calls == ["data", "name", "folder"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_run_resumed_after_a_kill_reads_as_one(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", Config())
    run.metrics.write_bytes(WHOLE + WHOLE[:-1])
    RunDirectory.create(tmp_path / "run", Config(), resume=True)
    with run.metrics.open("ab") as file:
        file.write(WHOLE)
    assert len(read_metrics(run.metrics)) == 3
