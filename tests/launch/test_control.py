"""Requests to a run of real processes: add, remove, checkpoint, stop, and a stack."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.commands import (
    CONTENDERS,
    Command,
    Start,
    check_coverage,
    is_free,
    later,
    lines_of,
    start_training,
    summary_of,
    until,
)
from support.learner_logs import read_logs
from unisono.data import Part, Prep
from unisono.fabric.local.request_socket import send_request
from unisono.learner.checkpoint_files import checkpoints
from unisono.runs import read_metrics

WAYS = ["dynamic", later("static"), later("gossip"), later("server")]
NEVER = ("--set", "checkpoint.every=1000000000")
"""No checkpoint unless one is asked for."""

pytestmark = pytest.mark.timeout(240)


def ask(out: Path, action: str, learner: int | None = None) -> dict[str, Any]:
    """As the live page does."""
    socket = Path(json.loads((out / "control.json").read_text())["socket"])
    return send_request(socket, {"action": action, "learner": learner}, 30.0)


def done(out: Path, action: str, learner: int | None = None) -> dict[str, Any]:
    answer = ask(out, action, learner)
    assert answer["done"], answer
    return answer


def begun(start: Start, prep: Path, out: Path, way: str, *more: str) -> Command:
    """A run all of whose learners train."""
    command = start_training(start, prep, out, way, *NEVER, *more)
    for number in range(3):
        log = out / "logs" / f"learner-{number}.log"
        until(lambda log=log: lines_of(log) > 20, what=f"learner {number} to train")
    return command


def events(out: Path, name: str) -> list[dict[str, Any]]:
    return [e for e in read_metrics(out / "metrics.jsonl") if e["event"] == name]


def check_stopped(out: Path, summary: dict[str, Any]) -> None:
    """What was handed out counts once, by the learners' own logs, and nothing else does."""
    counts, coverage = summary["minibatches"], read_logs(out / "logs")
    assert all(len(owners) == 1 for owners in coverage.shared.values())
    kept = coverage.shared.keys() | coverage.kept
    assert len(kept) == counts["committed"] + counts["skipped"]
    assert counts["leased"] == counts["committed"] + counts["skipped"] + counts["returned"]


def committed(out: Path) -> int:
    """Minibatches in the newest whole checkpoint."""
    pool = json.loads((checkpoints(out / "checkpoints")[-1] / "pool.json").read_text())
    return sum(stop - begin for begin, stop in pool["committed"])


def change_learners(start: Start, prep: Path, out: Path, way: str, epochs: int) -> Command:
    """Nobody replaces the one that is removed; one that dies later is replaced."""
    command = begun(start, prep, out, way, "--epochs", str(epochs))
    done(out, "remove", 1)
    assert ask(out, "remove", 1)["text"] in (
        "learner 1 is already leaving",
        "learner 1 is not running",
    )
    until(lambda: "learner 1 has left" in command.output(), what="learner 1 to leave")
    assert done(out, "add")["text"] == "learner 3 was added"
    until(lambda: lines_of(out / "logs" / "learner-3.log") > 20, what="learner 3 to train")
    os.kill(command.learner(0), signal.SIGKILL)
    until(lambda: "learner 4 replaces it" in command.output(), what="the death to be told")
    return command


def check_changes(command: Command, out: Path) -> dict[str, Any]:
    assert command.wait() == 0, command.output()
    assert "Traceback" not in command.output()
    assert not (out / "control.json").exists()
    summary = summary_of(out)
    assert summary["learners_lost"] == 1
    assert [e["learner"] for e in events(out, "lost")] == [0]
    asked = [(e["action"], e["learner"]) for e in events(out, "requested")]
    assert asked[:2] == [("remove", 1), ("add", 3)]
    return summary


def test_one_leaves_and_another_comes(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = change_learners(start, prep, out, "dynamic", 400)
    done(out, "stop")
    summary = check_changes(command, out)
    assert summary["ended"] == "stopped"
    check_stopped(out, summary)


@pytest.mark.long
@pytest.mark.parametrize("way", CONTENDERS)
def test_learners_that_change_train_all(start: Start, prep: Path, tmp_path: Path, way: str) -> None:
    out = tmp_path / "run"
    summary = check_changes(change_learners(start, prep, out, way, 40), out)
    assert summary["ended"] == "finished"
    assert summary["examples"] == 40 * Prep.open(prep).frames_of(Part.TRAIN)
    check_coverage(out, summary)


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_is_orderly_and_can_be_resumed(
    start: Start, prep: Path, tmp_path: Path, way: str
) -> None:
    """What the checkpoint of the stop has, and what is trained after it, is the whole run."""
    out = tmp_path / "run"
    command = begun(start, prep, out, way, "--epochs", "400")
    assert not checkpoints(out / "checkpoints")
    done(out, "stop")
    assert command.wait() == 0, command.output()
    stopped = summary_of(out)
    assert stopped["ended"] == "stopped" and (out / "model.safetensors").is_file()
    check_stopped(out, stopped)
    before = committed(out)
    assert 0 < before <= stopped["minibatches"]["committed"]
    epoch = -(-Prep.open(prep).frames_of(Part.TRAIN) // 64)
    epochs = before // epoch + 2
    resumed = start("train", "--resume", "--out", out, "--epochs", epochs)
    assert resumed.wait() == 0, resumed.output()
    whole = summary_of(out)
    assert whole["ended"] == "finished"
    counts = whole["minibatches"]
    assert before + counts["committed"] + counts["skipped"] == epochs * epoch


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_is_written_when_it_is_asked_for(
    start: Start, prep: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "run"
    command = begun(start, prep, out, way, "--epochs", "400")
    assert not checkpoints(out / "checkpoints")
    done(out, "checkpoint")
    until(lambda: bool(events(out, "checkpoint")), what="the checkpoint to be told")
    assert [e["minibatches"] for e in events(out, "checkpoint")] == [committed(out)]
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    until(lambda: is_free(out), what="the learners to end")
    resumed = start("train", "--resume", "--out", out, "--epochs", "400")
    log = out / "logs" / "learner-0.log"
    before = lines_of(log)
    until(lambda: lines_of(log) > before + 20, what="the run to go on")
    until(lambda: events(out, "status")[-1]["committed"] > committed(out), what="more of it")
    done(out, "stop")
    assert resumed.wait() == 0, resumed.output()


def test_a_request_survives_the_coordinator(start: Start, prep: Path, tmp_path: Path) -> None:
    """It is asked while there is none, and once more after it has died of the same."""
    out = tmp_path / "run"
    command = begun(start, prep, out, "dynamic", "--epochs", "400")
    os.kill(command.named("coordinator"), signal.SIGKILL)
    done(out, "remove", 2)
    until(lambda: "learner 2 has left" in command.output(), what="learner 2 to leave")
    os.kill(command.named("coordinator"), signal.SIGKILL)
    done(out, "stop")
    assert command.wait() == 0, command.output()
    assert command.output().count("coordinator killed by SIGKILL; started again") == 2
    assert [e["action"] for e in events(out, "requested")] == ["remove", "stop"]
    check_stopped(out, summary_of(out))


def test_stacks_and_what_is_refused(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = begun(start, prep, out, "dynamic", "--epochs", "400")
    shown = done(out, "stack", 1)["stack"]
    assert "most recent call first" in shown and "training/worker.py" in shown
    assert shown.count("Thread 0x") + shown.count("Current thread 0x") > 1
    log = out / "logs" / "learner-1.log"
    before = lines_of(log)
    until(lambda: lines_of(log) > before, what="learner 1 to go on")
    os.kill(command.learner(1), signal.SIGSTOP)
    assert "learner 1 shows no stack" in ask(out, "stack", 1)["text"]
    os.kill(command.learner(1), signal.SIGCONT)
    for learner in (7, None, "1", True, 1.5):
        for action in ("stack", "remove"):
            assert not ask(out, action, learner)["done"]  # type: ignore[arg-type]
    assert not ask(out, "format")["done"]
    done(out, "remove", 0)
    done(out, "remove", 1)
    assert ask(out, "remove", 2)["text"] == "learner 2 is the last learner: stop the run instead"
    until(lambda: "learner 1 has left" in command.output(), what="learner 1 to leave")
    done(out, "stop")
    assert command.wait() == 0, command.output()
    check_stopped(out, summary_of(out))


def test_a_run_of_one_learner_takes_requests_too(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = start(
        "train", prep, "--out", out, "--epochs", 400, "--set", "network.hidden=[128]",
        "--set", "minibatch=64", *NEVER,
    )  # fmt: skip
    until(lambda: lines_of(out / "logs" / "learner-0.log") > 20, what="it to train")
    done(out, "checkpoint")
    until(lambda: bool(events(out, "checkpoint")), what="the checkpoint to be told")
    assert "most recent call first" in done(out, "stack", 0)["stack"]
    assert not ask(out, "add")["done"] and not ask(out, "remove", 0)["done"]
    done(out, "stop")
    assert command.wait() == 0, command.output()
    assert summary_of(out)["ended"] == "stopped"
    written = [e["minibatches"] for e in events(out, "checkpoint")]
    assert len(written) == 2 and written[-1] == committed(out)
    assert committed(out) == summary_of(out)["minibatches"]["committed"]  # type: ignore[index]
    assert not (out / "control.json").exists()
