"""`unisono launch --processes-per-learner`: they train as one would, and die as one."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from support import processes_loop, whole_model
from support.forking import with_forks
from support.learner_logs import read_logs
from support.loop_launch import launch_loop
from support.processes_loop import PER_EPOCH
from unisono.errors import UserError
from unisono.fabric.local.child_processes import ChildExit, ChildProcesses
from unisono.launch import learner_processes, script_main
from unisono.launch.exit_codes import ABANDONED, DIVERGED, INCOMPLETE, left_with
from unisono.launch.learner_processes import LearnerProcesses
from unisono.launch.local import Launch, Outcome
from unisono.launch.script import launch_script
from unisono.learner.data_feed import DataFeed, as_source
from unisono.learner.learner import Learner
from unisono.learner.placement import LEARNER
from unisono.learner.planner import Minibatch
from unisono.learner.slices import Slices

pytestmark = pytest.mark.timeout(240)

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch(
    *words: str, learners: int, processes: int, timeout: float = 60.0
) -> tuple[Outcome, list[str]]:
    return with_forks(launch_loop, words, learners, processes, timeout)


def train(*words: str, learners: int, processes: int) -> None:
    outcome, lines = launch(*words, learners=learners, processes=processes)
    assert (outcome.failed, outcome.reason, lines) == (False, "", [])


def loop(folder: Path, way: str, epochs: int = 2, end: str = "") -> list[str]:
    """The words of a loop that writes into a new folder."""
    folder.mkdir()
    return [processes_loop.__name__, str(folder), way, str(epochs), *end.split()]


def check_same(found: Path, expected: Path) -> None:
    tensors: dict[str, Tensor] = torch.load(expected)
    assert torch.load(found).keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(torch.load(found)[name], tensor, rtol=1e-4, atol=1e-6)


# The same parameters.


@pytest.mark.parametrize(
    "way",
    [
        "averaging",
        "workers-averaging",
        pytest.param("allreduce", marks=pytest.mark.long),
        pytest.param("ddp-averaging", marks=pytest.mark.long),
    ],
)
def test_two_learners_of_two_processes_train_as_two_learners(tmp_path: Path, way: str) -> None:
    """Static sharding, so that it is known who trains what."""
    one, two = tmp_path / "one", tmp_path / "two"
    train(*loop(one, way.rpartition("-")[2]), learners=2, processes=1)
    train(*loop(two, way), learners=2, processes=2)
    check_same(two / "model.pt", one / "model.pt")


def test_statistics_of_batch_norm_after_two_backward_passes(tmp_path: Path) -> None:
    """The running mean of the input is that of whole minibatches."""
    means = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        train(*loop(folder, "twice-averaging"), learners=1, processes=processes)
        means.append(torch.load(folder / "model.pt")["0.running_mean"])
    torch.testing.assert_close(means[1], means[0], rtol=1e-5, atol=1e-6)


def test_a_model_in_two_parts_trains_as_the_whole_one(tmp_path: Path) -> None:
    """The example with PyTorch's pipelining, against a plain loop."""
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    train(whole_model.__name__, str(one), learners=2, processes=1)
    script = [script_main.__name__, str(EXAMPLES / "split_model.py"), "--width", "128"]
    train(*script, "--save", str(two), learners=2, processes=2)
    check_same(two, one)


@pytest.mark.long
def test_an_existing_loop_runs_as_it_is_and_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a GradScaler, accumulation, batch norm and a scheduler."""
    script = [script_main.__name__, str(EXAMPLES / "own_loop.py")]
    script += ["--checkpoints", str(tmp_path / "checkpoints")]
    train(*script, learners=2, processes=2)
    train(*script, "--resume", learners=2, processes=2)
    rights = re.findall(r"done: ([\d.]+)% right", capfd.readouterr().out)
    assert len(rights) == 2 and min(map(float, rights)) > 85


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """With dropout: the others draw by a seed of process 0, whose state is in the checkpoint."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(*loop(whole, "dropout"), learners=1, processes=2)
    outcome, _ = launch(*loop(broken, "dropout", end="0 1 20 error"), learners=1, processes=2)
    assert outcome.failed and not (broken / "model.pt").exists()
    assert list((broken / "checkpoints").glob("0*")), "it failed before its first checkpoint"
    train(processes_loop.__name__, str(broken), "dropout", "2", learners=1, processes=2)
    assert (broken / "model.pt").read_bytes() == (whole / "model.pt").read_bytes()


# Ended.


def check_survival(
    folder: Path, way: str, end: str, *, late: bool = False, timeout: float = 60.0
) -> None:
    """The other learner goes on, a new one comes, and each minibatch counts once.

    If the death is ``late``, the run may be over before the new one has come.
    """
    words = loop(folder, way, 20, end)
    outcome, lines = launch(*words, learners=2, processes=2, timeout=timeout)
    assert not outcome.failed, outcome.reason
    assert outcome.lost == ["learner 1"]
    assert "learner 1 was lost (" in lines[0], lines
    assert lines[1:] in ([], ["learner 2 came too late: the run was over"] * late), lines
    assert lines[0].endswith("the others go on; learner 2 replaces it in 1 s"), lines
    assert read_logs(folder).problems(20 * PER_EPOCH) == []


@pytest.mark.parametrize("process", [0, 1])
def test_the_death_of_a_process_is_that_of_its_learner(tmp_path: Path, process: int) -> None:
    check_survival(tmp_path / "run", "averaging", f"1 {process} 40 SIGKILL")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("way", ["averaging", "dynamic", "allreduce"])
def test_deaths_at_any_step_are_survived(tmp_path: Path, way: str, process: int) -> None:
    steps = random.Random(f"{way} {process}")
    for turn in range(20):
        step = steps.randrange(200)
        check_survival(tmp_path / str(turn), way, f"1 {process} {step} SIGKILL", late=step > 100)


@pytest.mark.long
def test_a_process_that_is_stopped_is_not_waited_for_forever(tmp_path: Path) -> None:
    check_survival(tmp_path / "run", "averaging", "1 1 40 SIGSTOP", late=True, timeout=1.0)


@pytest.mark.parametrize("process", [0, 1])
def test_an_error_of_one_process_ends_the_run(
    tmp_path: Path, process: int, capfd: pytest.CaptureFixture[str]
) -> None:
    words = loop(tmp_path / "run", "averaging", 20, f"1 {process} 40 error")
    outcome, _ = launch(*words, learners=2, processes=2)
    assert outcome.failed
    who = "process 1 of learner 1" if process else "learner 1"
    assert outcome.reason == f"{who} failed (exit status 1)"
    assert "ValueError: a bug of one process alone" in capfd.readouterr().err


def test_two_steps_on_one_minibatch_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The other processes would compute the second gradient with the parameters of the first."""
    words = loop(tmp_path / "run", "steps-averaging")
    outcome, _ = launch(*words, learners=1, processes=3)
    assert outcome.failed and outcome.reason.endswith("of learner 0 failed (exit status 2)")
    said = capfd.readouterr().err
    assert said.count("unisono: backward after optimizer.step() on the same minibatch") == 1
    assert "Traceback" not in said


# Told apart by the launcher.


def ends_of(*scripts: str) -> list[ChildExit]:
    """How a learner ends whose processes run these commands of the shell."""
    cases = [f"if [ $UNISONO_PROCESS = {rank} ]; then {s}; fi" for rank, s in enumerate(scripts)]
    children = LearnerProcesses(len(scripts))
    children.start("coordinator", ["sleep", "1000"], {})
    children.start("learner 0", ["sh", "-c", "; ".join(cases)], {LEARNER: "0"})
    assert children.started == ["coordinator", "learner 0"]
    try:
        ended = children.wait()
        assert children.wait(0.0) == []
    finally:
        children.stop(1.0)
    return ended


FOREVER = "exec sleep 1000"
LEFT = "printf 'unisono: {0}' > /proc/$$/comm; exit {0}"
HAS_DIVERGED, IS_INCOMPLETE = LEFT.format(DIVERGED), LEFT.format(INCOMPLETE)


@pytest.mark.parametrize(
    ("scripts", "expected"),
    [
        (["exit 0", FOREVER], ("learner 0", 0)),
        (["kill -9 $$", FOREVER], ("learner 0", -9)),
        ([FOREVER, "kill -9 $$"], ("learner 0", INCOMPLETE)),
        ([HAS_DIVERGED, FOREVER], ("learner 0", DIVERGED)),
        ([IS_INCOMPLETE, FOREVER], ("learner 0", INCOMPLETE)),
        ([IS_INCOMPLETE, IS_INCOMPLETE], ("learner 0", INCOMPLETE)),
        ([IS_INCOMPLETE, "exit 2"], ("process 1 of learner 0", 2)),
        ([FOREVER, "exit 76"], ("process 1 of learner 0", 76)),
        (["exit 2", IS_INCOMPLETE], ("learner 0", 2)),
        (["exec sleep 0.2", "exit 0"], ("learner 0", 0)),
    ],
)
def test_one_end_a_learner(
    scripts: list[str], expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_processes, "_GRACE_S", 0.5)
    assert ends_of(*scripts) == [ChildExit(*expected)]


@pytest.mark.parametrize("status", [ABANDONED, DIVERGED, INCOMPLETE])
def test_a_status_of_the_script_is_its_own(status: int) -> None:
    (ended,) = ends_of(f"exit {status}")
    assert not left_with(ended, ABANDONED, DIVERGED, INCOMPLETE)
    outcome = Launch(command=["sh", "-c", f"exit {status}"], learners=1).run()
    assert (outcome.failed, outcome.reason) == (True, f"learner 0 failed (exit status {status})")
    assert outcome.lost == []


def test_the_launcher_knows_what_a_learner_said_at_its_end() -> None:
    code = "from unisono.launch.exit_codes import leave; leave(3)"
    children = ChildProcesses()
    children.start("learner 0", [sys.executable, "-c", code], {})
    (ended,) = children.wait()
    assert left_with(ended, ABANDONED) and not left_with(ended, DIVERGED)


def test_slices_are_even_and_their_weights_add_up() -> None:
    for size in (1, 2, 3):
        for count in range(1, 20):
            each = [Slices(rank, size) for rank in range(size)]
            parts = [one.of(list(range(count))) for one in each]
            assert sum(one.weight(count) for one in each) == pytest.approx(1.0)
            if count < 2 * size:  # whole, in all processes
                assert all(part == list(range(count)) for part in parts)
                continue
            assert list(chain(*parts)) == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            weights = [one.weight(count) for one in each]
            assert weights == [len(part) / count for part in parts]


# Refused.


def test_data_without_indices_is_refused() -> None:
    with pytest.raises(UserError, match="split minibatches by the indices"):
        DataFeed(as_source(Stream(), 2), 1, 0, Slices(0, 2))


def test_what_a_sampler_gives_without_slices_is_refused() -> None:
    data = TensorDataset(torch.zeros(10, 1))
    source = as_source(DataLoader(data, batch_sampler=[set(range(4)), set(range(4, 8))]), None)
    assert len(DataFeed(source, 1, 0).load(Minibatch(0))[0]) == 4
    with pytest.raises(UserError, match="gives a set, which has no slices: have it give lists"):
        DataFeed(source, 1, 0, Slices(0, 2)).load(Minibatch(0))


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


def test_a_group_of_one_process_is_made_when_asked_for() -> None:
    model = torch.nn.Linear(2, 2)
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not dist.is_initialized()
    try:
        assert learner.process_group.size() == 1
        assert learner.process_group.rank() == 0
        other = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(UserError, match="there is a default process group already"):
            other.process_group  # noqa: B018
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"processes": 0}, "--processes-per-learner is 0: it must be at least 1"),
        ({"processes": 2, "cluster": "auto"}, "--processes-per-learner is for this machine"),
    ],
)
def test_what_cannot_be_launched_is_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        launch_script(__file__, (), learners="2", **options)
