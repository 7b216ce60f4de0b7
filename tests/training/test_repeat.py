"""The same seed gives the same bytes: repeated, prefetched or not, stopped and resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import Command, lines_of, until
from unisono.config import OptimizerChoice, load
from unisono.runs.directory import RunDirectory
from unisono.simulation.hosts import Link, one_host
from unisono.training.simulated_run import simulate_run
from unisono.training.train import train as train_here

Start = Callable[..., Command]

pytestmark = pytest.mark.timeout(240)

QUICK = [
    "--set", "minibatch=64", "--set", "network.hidden=[64]", "--set", "network.dropout=0.1",
    "--set", "threads=1", "--set", "validation.enabled=false", "--set", "strategy.every=512",
    "--set", "strategy.sharding=static", "--set", "augment.frequency_masks=1",
    "--set", "augment.time_masks=2",
]  # fmt: skip


def train(start: Start, prep: Path, out: Path, *more: object) -> Command:
    return start("train", prep, "--out", out, "--learners", 2, "--epochs", 2, *QUICK, *more)


def finish(command: Command, out: Path) -> bytes:
    assert command.wait() == 0, command.output()
    return (out / "model.safetensors").read_bytes()


def simulated(out: Path, run: Path) -> bytes:
    """The model of the same configuration on a simulated cluster, where learner 1 is slow."""
    free = Link(bandwidth_mbit=1000.0, latency_ms=1.0)
    hosts = one_host(2).model_copy(
        update={"minibatch_ms": {OptimizerChoice.NG_SGD: 5.0}, "shared_memory": free}
    )
    simulate_run(out, RunDirectory(run).read_config(), hosts, {1: 3.0}, {})
    return (out / "model.safetensors").read_bytes()


@pytest.mark.long
def test_two_runs_of_one_seed_simulated_and_with_and_without_prefetch(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    models = []
    for name, prefetch in (("a", 4), ("b", 0)):
        out = tmp_path / name
        command = train(start, prep, out, "--set", f"prefetch={prefetch}")
        models.append(finish(command, out))
    assert models[0] == models[1]
    assert simulated(tmp_path / "simulated", tmp_path / "a") == models[0]
    other = tmp_path / "c"
    assert finish(train(start, prep, other, "--seed", 1), other) != models[0]


@pytest.mark.long
@pytest.mark.parametrize("every", [4096, 0], ids=["mid-epoch", "epoch's end"])
def test_a_killed_run_that_resumes_ends_with_the_same_bytes(
    start: Start, prep: Path, tmp_path: Path, every: int
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    keep = ["--epochs", "6", "--set", f"checkpoint.every={every}"]
    expected = finish(train(start, prep, whole, *keep), whole)
    command = train(start, prep, broken, *keep)
    folder = broken / "checkpoints"
    until(
        lambda: folder.is_dir() and any(p.name.isdigit() for p in folder.iterdir()),
        what="a checkpoint",
    )
    seen = lines_of(broken / "logs" / "learner-0.log")
    until(lambda: lines_of(broken / "logs" / "learner-0.log") > seen + 10, what="some more steps")
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    assert not (broken / "model.safetensors").exists(), "the run was over before it was killed"
    resumed = start("train", "--out", broken, "--resume")
    assert finish(resumed, broken) == expected
    # Once more, exactly from the end: nothing is left to train, and the model is the same.
    again = start("train", "--out", broken, "--resume")
    assert finish(again, broken) == expected


def test_a_configuration_repeats_a_run(prep: Path, tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "first"), RunDirectory(tmp_path / "second")
    flags = {"prep": str(prep), "epochs": 2, "strategy.name": "averaging"}
    train_here(load(None, QUICK[1::2], flags), first.path)
    train_here(load(first.config, [], {}), second.path)
    assert first.model.read_bytes() == second.model.read_bytes()


def test_a_pace_chosen_with_dynamic_sharding_is_not_put_into_the_configuration(
    prep: Path, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    dynamic = ["strategy.sharding=dynamic", "strategy.every=auto"]
    flags = {"prep": str(prep), "epochs": 1, "strategy.name": "averaging"}
    train_here(load(None, QUICK[1::2] + dynamic, flags), run.path)
    assert "pace" in {event["event"] for event in run.read_metrics()}
    assert 'every = "0:' not in run.config.read_text()


@pytest.mark.long
def test_a_run_whose_pace_was_chosen_by_measurement_can_be_repeated(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    expected = finish(train(start, prep, first, "--set", "strategy.every=auto"), first)
    recorded = (first / "config.toml").read_text()
    assert 'every = "0:' in recorded
    command = start("train", "--config", first / "config.toml", "--out", again)
    assert finish(command, again) == expected
    assert (again / "config.toml").read_text() == recorded
