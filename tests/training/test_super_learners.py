"""Learners of several processes: they train as one would, and die as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from support.alive import is_alive
from support.commands import Command, check_coverage, lines_of, summary_of, until
from support.trainings import train_with_forks
from unisono.config import Config, load
from unisono.data import Part
from unisono.errors import ProcessLost, UserError
from unisono.fabric.local.child_processes import ChildExit, ChildProcesses
from unisono.learner.checkpoint_files import checkpoints
from unisono.learner.learner import Learner
from unisono.learner.placement import LEARNER
from unisono.learner.process_group import GroupBroken
from unisono.models import build
from unisono.optim import NaturalGradientSGD
from unisono.runs.directory import RunDirectory
from unisono.training import worker
from unisono.training.builders import choose_device, open_data, shape_of, source_of, strategy_of
from unisono.training.helpers import Helpers, check_processes
from unisono.training.inner_group import slice_rows
from unisono.training.simulation_plan import plan_simulation

Start = Callable[..., Command]

pytestmark = pytest.mark.timeout(240)

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
"""A gradient that is summed in another order differs by some 1e-7 of its size, in each step; the
parameters are 0.1 to 1. What is wrong in a step (a weight, a slice left out) shows in the second
digit."""
QUICK = [
    "network.hidden=[32]", "threads=1", "validation.enabled=false", "precision=float32",
    "device=cpu",
]  # fmt: skip


def config_of(prep: Path, *sets: str, learners: int = 1, processes: int = 1) -> Config:
    flags = {"prep": str(prep), "learners": str(learners), "processes_per_learner": processes}
    return load(None, [*QUICK, *sets], {"epochs": 1, **flags})


def trained(out: Path, config: Config) -> dict[str, Tensor]:
    train_with_forks(config, out)
    return load_file(RunDirectory(out).model)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **CLOSE, msg=lambda m, n=name: f"{n}: {m}")


# The same parameters.


def test_a_minibatch_is_sliced_evenly() -> None:
    assert slice_rows(64, 2) == (32, 32)
    assert slice_rows(11, 3) == (4, 4, 3)
    assert slice_rows(6, 3) == (2, 2, 2)
    assert slice_rows(5, 3) == (5, 0, 0)  # batch norm could not normalise a single example


@pytest.mark.parametrize(
    "sets",
    [
        ["minibatch=97"],  # 33, 32 and 32; 91 at the end: 31, 30 and 30
        ["model=tdnn", "minibatch=352"],  # 11 chunks; the last of an utterance is half unlabelled
    ],
    ids=["frames", "chunks"],
)
def test_three_processes_train_as_one(prep: Path, tmp_path: Path, sets: list[str]) -> None:
    expected = trained(tmp_path / "one", config_of(prep, "optimizer=sgd", *sets))
    config = config_of(prep, "optimizer=sgd", *sets, processes=3)
    assert_close(trained(tmp_path / "three", config), expected)


@pytest.mark.parametrize("strategy", ["solo", "averaging"])
def test_natural_gradients_are_the_means_of_those_of_the_slices(
    prep: Path, tmp_path: Path, strategy: str
) -> None:
    """Against two models in one process, each with Fisher estimates from its own slices.

    Averaging, of one learner, restarts the estimates after each round.
    """
    sets = ["optimizer=ng-sgd", "minibatch=97", "rate.schedule=constant", "rate.momentum=0.0"]
    sets += [f"strategy.name={strategy}"]
    if strategy == "averaging":
        sets += ["strategy.every=970", "strategy.restart_optimizer=true"]
        sets += ["strategy.sharding=static"]
    config = config_of(prep, *sets, processes=2)
    found = trained(tmp_path / "run", config)
    data = open_data(config)
    shape = shape_of(config, data)
    model, other = (build(config.model, seed=config.seed, **shape) for _ in range(2))
    optimizer, hooks = (NaturalGradientSGD(m, config.start_rate) for m in (model, other))
    for one in (optimizer, hooks):
        one.param_groups[-1]["max_change"] = config.natural_gradient.max_change_output
    source = source_of(config, data, Part.TRAIN, model, None)

    def add_the_other() -> None:
        if restarted:
            hooks.restart_fisher()
        other.load_state_dict(model.state_dict())
        other.zero_grad()
        share(other, slice(first, None)).backward()
        for parameter, added in zip(model.parameters(), other.parameters(), strict=True):
            assert parameter.grad is not None and added.grad is not None
            parameter.grad += added.grad

    def share(one: nn.Module, rows: slice) -> Tensor:
        x, y = minibatch
        return functional.cross_entropy(one(x[rows]), y[rows], reduction="sum") / len(x)

    with Learner(
        model,
        optimizer,
        strategy_of(config),
        seed=config.seed,
        quiet=True,
        reduce_gradients=add_the_other,
    ) as learner:
        for minibatch in learner.draw(source, config.epochs, config.minibatch):
            first = (len(minibatch[0]) + 1) // 2
            restarted = not optimizer.state
            learner.step(share(model, slice(first)))
    assert_close(found, model.state_dict())


def test_a_schedule_of_dropout_holds_for_helpers(prep: Path, tmp_path: Path) -> None:
    """Kaldi's recipe: models are made with a share of 0.5, and each round begins with one of 0."""
    sets = ["optimizer=sgd", "minibatch=97", "strategy.name=averaging", "strategy.every=1940"]
    sets += ["recipe.enabled=true", "recipe.dropout=0,0@0.99,0.5", "recipe.combine=0"]
    expected = trained(tmp_path / "one", config_of(prep, *sets))
    assert_close(trained(tmp_path / "two", config_of(prep, *sets, processes=2)), expected)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["averaging", "allreduce", "server", "delay-by-one"])
def test_two_super_learners_train_as_two_learners(
    prep: Path, tmp_path: Path, strategy: str
) -> None:
    """Static sharding, so that it is known who trains what; a server has one learner only."""
    learners = 1 if strategy == "server" else 2
    sets = [f"strategy.name={strategy}", "minibatch=97", "optimizer=sgd"]
    if strategy == "averaging":
        sets += ["strategy.sharding=static", "strategy.every=485"]
    expected = trained(tmp_path / "one", config_of(prep, *sets, learners=learners))
    config = config_of(prep, *sets, learners=learners, processes=2)
    assert_close(trained(tmp_path / "two", config), expected)


@pytest.mark.long
def test_torchruns_processes_start_helpers(prep: Path, tmp_path: Path) -> None:
    sets = ["minibatch=97", "optimizer=sgd", "strategy.sharding=static", "strategy.every=485"]
    expected = trained(tmp_path / "one", config_of(prep, *sets, learners=2))
    words = [word for key in [*QUICK, *sets] for word in ("--set", key)]
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "unisono"]
    command += ["train", str(prep), "--out", "run", "--processes-per-learner", "2", *words]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--epochs", "1"],
        cwd=tmp_path,
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_close(load_file(tmp_path / "run" / "model.safetensors"), expected)


@pytest.mark.long
def test_statistics_of_batch_norm_are_means_over_the_slices(prep: Path, tmp_path: Path) -> None:
    """A rate of 0 leaves the parameters alone: the running mean is that of whole minibatches."""
    sets = ["optimizer=sgd", "network.batch_norm=true", "rate.start=1e-30", "minibatch=96"]
    expected = trained(tmp_path / "one", config_of(prep, *sets))
    found = trained(tmp_path / "two", config_of(prep, *sets, processes=2))
    means = [name for name in expected if name.endswith("running_mean")]
    assert means
    assert_close({n: found[n] for n in means}, {n: expected[n] for n in means})


# Repeated and resumed.


@pytest.mark.long
def test_a_killed_run_that_resumes_ends_with_the_same_bytes(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    """With dropout: helpers draw by a seed of process 0, whose state is in the checkpoint."""
    options = ["optimizer=sgd", "minibatch=64", "network.dropout=0.1", "checkpoint.every=4096"]
    options += ["strategy.sharding=static", "strategy.every=512"]
    words: list[Any] = [word for key in [*QUICK, *options] for word in ("--set", key)]
    words += ["--learners", 2, "--processes-per-learner", 2, "--epochs", 4]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = start("train", prep, "--out", whole, *words)
    assert command.wait() == 0, command.output()
    command = start("train", prep, "--out", broken, *words)
    until(lambda: bool(checkpoints(broken / "checkpoints")), what="a checkpoint")
    helpers = [processes(command, f"learner {number}.1")[0] for number in (0, 1)]
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    for pid in helpers:
        until(lambda pid=pid: not is_alive(pid), what="a helper to be gone")
    assert not RunDirectory(broken).model.exists(), "the run was over before it was killed"
    resumed = start("train", "--out", broken, "--resume")
    assert resumed.wait() == 0, resumed.output()
    assert RunDirectory(broken).model.read_bytes() == RunDirectory(whole).model.read_bytes()


# Killed.


def processes(command: Command, name: str) -> list[int]:
    """Those of a command's learners and helpers, of this name in top."""
    learners = command.children("")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            comm = (entry / "comm").read_text().strip()
        except (OSError, IndexError, ValueError):
            continue
        if parent in [command.process.pid, *learners] and comm == name:
            found.append(int(entry.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("victim", ["learner 1.1", "learner 1"], ids=["helper", "process 0"])
def test_a_death_of_one_process_is_that_of_its_learner(
    start: Start, prep: Path, tmp_path: Path, victim: str
) -> None:
    """The other learner goes on, a new one comes, and each minibatch counts once."""
    out = tmp_path / "run"
    sets = [word for key in [*QUICK, "strategy.every=512"] for word in ("--set", key)]
    sizes = ["--learners", 2, "--processes-per-learner", 2, "--epochs", 12]
    command = start("train", prep, "--out", out, *sizes, *sets)
    until(lambda: lines_of(out / "logs" / "learner-1.log") > 5, what="learner 1 to train")
    helper = processes(command, "learner 1.1")[0]
    os.kill(processes(command, victim)[0], signal.SIGKILL)
    until(lambda: not is_alive(helper), what="the helper to be gone")
    until(lambda: lines_of(out / "logs" / "learner-2.log") > 5, what="learner 2 to train")
    assert command.wait() == 0, command.output()
    output = command.output()
    assert "Traceback" not in output
    how = "one of its processes died" if victim == "learner 1.1" else "killed by SIGKILL"
    assert f"learner 1 was lost ({how}); the others go on; learner 2 replaces it" in output
    summary = summary_of(out)
    assert (summary["learners_lost"], summary["learners_joined"]) == (1, 1)
    check_coverage(out, summary)
    assert not processes(command, "learner 0.1") and not processes(command, "learner 2.1")


@pytest.mark.long
def test_a_learner_alone_says_that_it_has_lost_a_process(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sets = [word for key in QUICK for word in ("--set", key)]
    command = start(
        "train", prep, "--out", out, "--processes-per-learner", 3, "--epochs", 99, *sets
    )
    until(lambda: lines_of(out / "logs" / "learner-0.log") > 5, what="steps")
    others = [processes(command, f"learner 0.{rank}")[0] for rank in (1, 2)]
    os.kill(others[1], signal.SIGKILL)
    assert command.wait() == 2
    line = "unisono: process 2 of learner 0 was lost (killed by SIGKILL); go on from a checkpoint"
    assert command.output().splitlines()[-1].startswith(line)
    assert not any(is_alive(pid) for pid in others)


@pytest.mark.long
def test_a_helper_that_is_stopped_is_not_waited_for_forever(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sets = [word for key in [*QUICK, "timeout_s=1.0"] for word in ("--set", key)]
    sizes = ["--learners", 2, "--processes-per-learner", 2, "--epochs", 12]
    command = start("train", prep, "--out", out, *sizes, *sets)
    until(lambda: lines_of(out / "logs" / "learner-1.log") > 5, what="learner 1 to train")
    os.kill(processes(command, "learner 1.1")[0], signal.SIGSTOP)
    assert command.wait() == 0, command.output()
    assert "learner 1 was lost (one of its processes died)" in command.output()


def test_the_helper_that_was_killed_is_named_not_those_that_missed_it(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others leave with status 0 when it is gone, and may do so first."""
    told = [[ChildExit("process 1", 0)], [ChildExit("process 2", -9), ChildExit("process 3", 0)]]
    monkeypatch.setattr(ChildProcesses, "start", lambda *arguments, **how: None)
    monkeypatch.setattr(ChildProcesses, "running", property(lambda self: ["process 2"]))
    monkeypatch.setattr(ChildProcesses, "wait", lambda self, seconds: told.pop(0))
    run = RunDirectory.create(tmp_path / "run", config_of(prep, processes=4), resume=False)
    helpers = Helpers(run, 0, 0)
    reason = helpers._reason(GroupBroken("Connection closed by peer"))
    assert isinstance(reason, ProcessLost)
    assert str(reason) == "process 2 was lost (killed by SIGKILL)"


# Placed, and refused.


def test_learners_of_one_machine_take_its_gpus_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def note(run: object, *, local_number: int, **_: Any) -> Any:
        made.append(local_number)
        raise UserError("that is all")

    monkeypatch.setattr(worker, "Worker", note)
    monkeypatch.setattr(worker, "name_process", lambda name: None)
    monkeypatch.setattr(RunDirectory, "open", lambda path: None)
    monkeypatch.setattr("sys.argv", ["worker", str(tmp_path)])
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    monkeypatch.setenv(LEARNER, "3")
    with pytest.raises(SystemExit):
        worker.main()
    assert made == [3]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(Config(), 3) == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["cluster=auto"], "does not work on Ray clusters"),
        (["minibatch=3"], "need minibatches of 4 examples or more, and minibatch=3 has 3"),
        (["model=tdnn", "minibatch=96"], "minibatch=96 has 3"),
    ],
)
def test_what_cannot_be_is_refused(prep: Path, sets: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_processes(config_of(prep, *sets, processes=2))
    check_processes(config_of(prep, *sets))


def test_each_process_needs_a_gpu_of_its_own(prep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="need a GPU each, and torch finds 1"):
        check_processes(config_of(prep, "device=cuda", processes=2))
    check_processes(config_of(prep, "device=cpu", processes=2))


def test_they_are_not_simulated(prep: Path) -> None:
    with pytest.raises(UserError, match="cannot be simulated"):
        plan_simulation(
            prep=prep,
            strategies="allreduce",
            learners=2,
            seeds=1,
            epochs=1,
            sets=["processes_per_learner=2"],
        )
