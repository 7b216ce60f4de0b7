"""Servers beside the learners, as real processes that are really killed and stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.commands import (
    Command,
    Start,
    check_coverage,
    later,
    lines_of,
    start_training,
    summary_of,
    until,
)
from unisono.config import load
from unisono.errors import UserError
from unisono.learner.checkpoint_files import checkpoints, part_names
from unisono.runs.directory import RunDirectory
from unisono.training.train import check

pytestmark = pytest.mark.timeout(240)


def trains(out: Path, learner: int = 0, lines: int = 40) -> None:
    until(
        lambda: lines_of(out / "logs" / f"learner-{learner}.log") > lines,
        what=f"learner {learner} to train",
    )


def check_end(command: Command, out: Path, *, lost: int) -> dict[str, object]:
    """The run is finished, each minibatch is in the model once, and no learner was lost."""
    assert command.wait() == 0, command.output()
    summary = summary_of(out)
    assert (summary["ended"], summary["learners_lost"]) == ("finished", 0)
    assert summary["servers_lost"] == lost
    check_coverage(out, summary)
    return summary


@pytest.mark.parametrize("way", ["--no-respawn", later("--respawn")])
def test_the_learners_go_on_when_their_only_server_is_killed(
    start: Start, prep: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "run"
    more = ["--servers", "1", "--epochs", "2", "--set", "network.hidden=[32]", way]
    command = start_training(start, prep, out, "server", *more)
    trains(out)
    os.kill(command.named("server 3"), signal.SIGKILL)
    summary = check_end(command, out, lost=1)
    counts = summary["minibatches"]
    assert isinstance(counts, dict)
    assert (counts["returned"], counts["redone"]) == (0, 0)  # nothing was lost with it
    assert "server 3 was lost (killed by SIGKILL); the others go on" in command.output()
    assert ("server 4 replaces it" in command.output()) == (way == "--respawn")


@pytest.mark.long
def test_the_other_server_takes_the_shards_over(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = ["--servers", "2", "--learners", "4", "--no-respawn"]
    command = start_training(start, prep, out, "server", *sizes)
    trains(out)
    os.kill(command.named("server 5"), signal.SIGKILL)
    summary = check_end(command, out, lost=1)
    links = summary["links"]
    assert isinstance(links, list)
    senders = {link["sender"] for link in links}
    assert senders == {"server 4", *(f"learner {number}" for number in range(4))}


@pytest.mark.long
def test_a_learner_is_killed_beside_servers(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = start_training(start, prep, out, "server", "--servers", "2")
    trains(out, 1)
    os.kill(command.learner(1), signal.SIGKILL)
    assert command.wait() == 0, command.output()
    summary = summary_of(out)
    assert (summary["learners_lost"], summary["servers_lost"]) == (1, 0)
    check_coverage(out, summary)
    assert "learner 5 replaces it" in command.output()


@pytest.mark.long
def test_the_only_learner_is_replaced_from_the_server(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    """The server has the model: what the dead learner had pushed is not trained again."""
    out = tmp_path / "run"
    command = start_training(start, prep, out, "server", "--servers", "1", "--learners", "1")
    trains(out)
    os.kill(command.learner(0), signal.SIGKILL)
    assert command.wait() == 0, command.output()
    summary = summary_of(out)
    assert (summary["learners_lost"], summary["ended"]) == (1, "finished")
    check_coverage(out, summary)


@pytest.mark.long
def test_without_learners_the_run_ends(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = ["--servers", "2", "--learners", "1", "--no-respawn"]
    command = start_training(start, prep, out, "server", *sizes)
    trains(out)
    os.kill(command.learner(0), signal.SIGKILL)
    assert command.wait(60) == 2
    assert "every learner was lost; go on from a checkpoint with --resume" in command.output()


@pytest.mark.long
def test_a_stopped_server_is_refused_and_rejoins(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ["--servers", "2", "--epochs", "8"]
    command = start_training(start, prep, out, "server", *more, timeout=1.0)
    trains(out)
    pid = command.named("server 4")
    os.kill(pid, signal.SIGSTOP)
    metrics = out / "metrics.jsonl"
    until(lambda: '"event":"server_lost"' in metrics.read_text(), what="server 4 to be lost")
    trains(out, lines=lines_of(out / "logs" / "learner-0.log") + 40)  # the others go on
    os.kill(pid, signal.SIGCONT)
    check_end(command, out, lost=1)
    assert metrics.read_text().count('"event":"server_joined"') == 3


SHORT = [
    "--learners", "1", "--epochs", "1", "--set", "minibatch=64", "--set", "network.hidden=[32]",
    "--set", "threads=1", "--set", "strategy.overlap=false", "--set", "strategy.push_every=2",
    "--set", "validation.on=none",
]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["server"],
        ["server", "--set", "strategy.push=gradient"],
        ["averaged-server"],
        ["elastic"],
    ],
)
@pytest.mark.long
def test_one_learner_ends_with_the_same_bits_with_and_without_a_server(
    start: Start, prep: Path, tmp_path: Path, words: list[str]
) -> None:
    models = []
    for servers in ("0", "1"):
        out = tmp_path / f"run-{servers}"
        how = ["--servers", servers, "--strategy", *words]
        command = start("train", prep, "--out", out, *SHORT, *how)
        assert command.wait() == 0, command.output()
        models.append(load_file(RunDirectory(out).model))
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.long
def test_a_run_with_servers_is_resumed(start: Start, prep: Path, tmp_path: Path) -> None:
    """All shards are in the checkpoint: none is trained again, and none is lost."""
    out = tmp_path / "run"
    more = ["--servers", "2", "--set", "checkpoint.every=2000"]
    command = start_training(start, prep, out, "server", *more)
    folder = RunDirectory(out).checkpoints
    until(lambda: bool(checkpoints(folder)), what="a checkpoint")
    command.end()
    files = [path.name for path in checkpoints(folder)[-1].iterdir()]
    assert part_names(files, "server") == ["server-3", "server-4"]
    command = start("train", "--resume", "--out", out)
    assert command.wait() == 0, command.output()
    assert summary_of(out)["ended"] == "finished"


@pytest.mark.parametrize(
    ("strategy", "cluster", "why"),
    [
        ("averaging", "", "averaging has no shards that servers could hold"),
        ("server", "auto", "--servers does not work on Ray clusters"),
    ],
)
def test_servers_are_refused_where_they_cannot_be(
    prep: Path, strategy: str, cluster: str, why: str
) -> None:
    flags = {"prep": str(prep), "strategy.name": strategy, "cluster": cluster, "servers": 1}
    with pytest.raises(UserError, match=why):
        check(load(None, [], {**flags, "learners": "2"}))
