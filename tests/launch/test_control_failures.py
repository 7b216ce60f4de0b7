"""Requests to a run where something fails: a disk, the temporary directory, too little memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.commands import until
from unisono.config import load
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.fabric.local.request_socket import send_request
from unisono.launch.control import Control
from unisono.launch.coordinator_main import REQUESTS
from unisono.launch.local import Launch
from unisono.learner.placement import DIRECTORY, LEARNER, stacks_file
from unisono.training import train as training
from unisono.training.train import train

SLEEPERS = [sys.executable, "-c", "import time; time.sleep(600)"]
"""Learners that never join."""
QUICK = ["network.hidden=[16]", "threads=1", "device=cpu", "validation.enabled=false"]

pytestmark = pytest.mark.timeout(120)


class Over(Exception):  # noqa: N818
    """The test is over."""


def launched(
    note: Path, script: Callable[[Callable[..., dict[str, Any]], Path], None], processes: int = 1
) -> list[str]:
    """Asks a run of two sleepers for what a script says; returns what the run said."""
    said: list[str] = []

    def work() -> None:
        until(note.exists, what="the note")
        socket = Path(json.loads(note.read_text())["socket"])

        def ask(action: str, learner: int | None = None) -> dict[str, Any]:
            return send_request(socket, {"action": action, "learner": learner}, 30.0)

        script(ask, socket.parent)

    with ThreadPoolExecutor(1) as pool:
        works = pool.submit(work)

        def turn() -> None:
            if works.done():
                raise Over

        with pytest.raises(Over):
            Launch(
                command=SLEEPERS,
                learners=2,
                say=said.append,
                control=note,
                on_turn=turn,
                processes=processes,
            ).run()
        works.result()
    return said


def test_a_request_that_cannot_be_written_has_failed_and_can_be_repeated(tmp_path: Path) -> None:
    failed = {"done": False, "text": "the request failed: No space left on device"}

    def script(ask: Callable[..., dict[str, Any]], directory: Path) -> None:
        requests = directory / REQUESTS
        requests.symlink_to("/dev/full")
        for request in (("add",), ("remove", 0), ("checkpoint",), ("stop",)):
            assert ask(*request) == failed
        requests.unlink()
        assert ask("remove", 0)["done"]
        assert ask("remove", 1)["text"] == "learner 1 is the last learner: stop the run instead"
        assert json.loads(requests.read_text()) == {"action": "remove", "learner": 0}

    assert launched(tmp_path / "control.json", script) == ["learner 0 was asked to leave"]


def test_an_added_learner_needs_memory_for_all_its_processes(tmp_path: Path) -> None:
    def script(ask: Callable[..., dict[str, Any]], directory: Path) -> None:
        answer = ask("add")
        assert not answer["done"]
        assert answer["text"].startswith("3 learners of 1000000 processes need at least")

    assert launched(tmp_path / "control.json", script, processes=1_000_000) == []


def test_a_run_is_launched_with_the_processes_of_its_learners(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def launch(**settings: Any) -> None:
        found.append(settings["processes"])
        raise Over

    monkeypatch.setattr(training, "Launch", launch)
    flags = {"prep": str(prep), "learners": "2", "processes_per_learner": 3}
    with pytest.raises(Over):
        train(load(None, QUICK, flags), tmp_path / "run")
    assert found == [3]


def test_a_note_that_cannot_be_removed_is_left(tmp_path: Path) -> None:
    note = tmp_path / "control.json"
    with tempfile.TemporaryDirectory() as folder:
        control = Control(note, Path(folder), {})
        note.unlink()
        note.mkdir()  # which no unlink removes
        control.close()
    assert note.is_dir()


def is_child(pid: int) -> bool:
    """Whether this process has such a child, for which nobody has waited yet."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def test_processes_are_stopped_though_the_control_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def started(children: ChildProcesses) -> None:
        pids.extend(children.pid(name) for name in children.started)

    def fail(*_: object) -> None:
        raise Over

    monkeypatch.setattr(Control, "answer", fail)
    monkeypatch.setattr(Control, "close", fail)
    note = tmp_path / "control.json"
    with pytest.raises(Over):
        Launch(command=SLEEPERS, learners=2, control=note, on_start=started).run()
    left = [pid for pid in pids if is_child(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == 3 and not left


def test_a_run_of_one_learner_needs_no_temporary_directory(
    prep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    summary = train(load(None, QUICK, {"prep": str(prep), "epochs": 1}), tmp_path / "run")
    assert summary.ended == "finished"
    warnings = [m for m in caplog.messages if "accepts no requests" in m]
    assert len(warnings) == 1 and "No such file or directory" in warnings[0]


def test_a_learner_that_cannot_offer_its_stacks_trains(tmp_path: Path) -> None:
    """It gets as far as its run, which is not there."""
    file = stacks_file(tmp_path, 0)
    file.with_name(f".{file.name}").mkdir()  # which cannot be opened to write
    ended = subprocess.run(
        [sys.executable, "-m", "unisono.training.worker", str(tmp_path / "run")],
        env={**os.environ, DIRECTORY: str(tmp_path), LEARNER: "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    line = f"unisono: {tmp_path / 'run'} is not a run: no such directory"
    assert ended.stderr.splitlines() == [line]
