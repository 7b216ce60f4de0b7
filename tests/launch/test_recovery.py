"""Runs that lose learners, their coordinator at the very end, or the room on a disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import (
    SLOW_TIMEOUT,
    Start,
    check_coverage,
    later,
    lines_of,
    start_training,
    summary_of,
    until,
)
from support.disks import small_disk
from support.learner_logs import read_logs
from unisono.launch import local
from unisono.launch.local import Launch
from unisono.learner.checkpoint_files import check, checkpoints

# Learners that die.


SLOW_SCRIPT = """
import os, sys, time, torch, unisono
from torch.utils.data import TensorDataset
folder, name = sys.argv[1:]
strategies = {
    "static": unisono.Averaging(every=32, sharding=unisono.Sharding.STATIC),
    "dynamic": unisono.Averaging(every=32, sharding=unisono.Sharding.DYNAMIC),
    "server": "server",
    "gossip": unisono.GossipRandom(every=32),
}
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(9_600, 4), torch.zeros(9_600, dtype=torch.long))
number = os.environ["UNISONO_LEARNER"]
log = f"{folder}/learner-{number}.log"
with unisono.Learner(model, optimizer, strategies[name], log=log) as learner:
    for x, y in learner.draw(data, batch_size=8):
        learner.step(torch.nn.functional.cross_entropy(model(x), y))
        if not os.path.exists(f"{folder}/hurry"):
            time.sleep(0.3)
"""


LATE_SCRIPT = """
import os, signal, sys, time, torch, unisono
from torch.utils.data import TensorDataset
folder, number = sys.argv[1], os.environ["UNISONO_LEARNER"]
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
if number == "2":
    open(f"{folder}/there", "w").close()
    wait_for(os.environ["UNISONO_DIRECTORY"] + "/outcome.json")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
with unisono.Learner(model, optimizer, unisono.GossipRandom(every=32)) as learner:
    for x, y in learner.draw(data, batch_size=8):
        learner.step(torch.nn.functional.cross_entropy(model(x), y))
        if number == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for(f"{folder}/there")
"""


@pytest.mark.long
def test_a_replacement_that_comes_too_late_is_no_failure(start: Start, tmp_path: Path) -> None:
    """It starts while the others train, and would join when the coordinator is gone."""
    script = tmp_path / "script.py"
    script.write_text(LATE_SCRIPT)
    command = start("launch", "--learners", 2, script, tmp_path)
    assert command.wait() == 0, command.output()
    assert "learner 2 replaces it" in command.output()
    assert "learner 2 came too late: the run was over" in command.output()


@pytest.mark.parametrize(
    "way", [later("static"), later("dynamic"), later("server"), later("gossip")]
)
def test_learners_that_die_are_replaced(start: Start, tmp_path: Path, way: str) -> None:
    """The newcomer trains, its death is made good, too, and every minibatch counts once."""
    script, logs = tmp_path / "script.py", tmp_path / "logs"
    script.write_text(SLOW_SCRIPT)
    logs.mkdir()
    command = start("launch", "--learners", 3, "--timeout", SLOW_TIMEOUT, script, logs, way)
    for place, victim in enumerate((1, 3)):
        log = logs / f"learner-{victim}.log"
        until(lambda log=log: lines_of(log) > 5, what=f"learner {victim} to train")
        os.kill(command.learner(victim), signal.SIGKILL)
        line = (
            f"learner {victim} was lost (killed by SIGKILL); the others go on; "
            f"learner {3 + place} replaces it in {1 + place} s\n"
        )
        until(lambda line=line: line in command.output(), what="the death to be told")
    until(lambda: lines_of(logs / "learner-4.log") > 5, what="learner 4 to train")
    (logs / "hurry").touch()
    assert command.wait() == 0, command.output()
    assert read_logs(logs).problems(1200) == []
    assert command.output().count("was lost") == 2 and "Traceback" not in command.output()


@pytest.mark.long
def test_nobody_is_replaced_when_nobody_is_left(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = start_training(start, prep, out, "static", "--epochs", "40")
    until(lambda: bool(checkpoints(out / "checkpoints")), what="a checkpoint")
    for learner in [command.learner(number) for number in range(3)]:
        os.kill(learner, signal.SIGKILL)
    assert command.wait() == 2
    output = command.output()
    assert "Traceback" not in output
    assert output.endswith(
        "every learner was lost; go on from a checkpoint with --resume (in a script: resume=True)\n"
    )


# The coordinator, killed at the very end.

SCRIPT = """
import os, signal, sys, torch, unisono
from pathlib import Path
from torch.utils.data import TensorDataset

def kill_coordinator():
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes().decode().split("\\0")
        except (OSError, IndexError, ValueError):
            continue
        if parent == os.getppid() and "unisono.launch.coordinator_main" in words:
            os.kill(int(entry.name), signal.SIGKILL)

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 4), torch.zeros(640, dtype=torch.long))
with unisono.Learner(model, optimizer, "averaging") as learner:
    for x, y in learner.draw(data, batch_size=16):
        learner.step(torch.nn.functional.cross_entropy(model(x), y))
    if learner.number == 0:
        kill_coordinator()
if learner.number == 0:
    kill_coordinator()
"""


def test_the_coordinator_is_killed_after_the_last_minibatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next incarnation has no time to say how the run ended: its journal does."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(local, "GRACE_S", 0.01)
    said: list[str] = []
    outcome = Launch(
        command=[sys.executable, "-m", "unisono.launch.script_main", str(script)],
        learners=1,
        timeout=60.0,
        say=said.append,
    ).run()
    assert said and set(said) == {"coordinator killed by SIGKILL; started again"}
    assert not outcome.failed and outcome.coordinator["over"]
    assert outcome.coordinator["minibatches"]["committed"] == 40
    assert outcome.coordinator["newly_committed"] == [[0, 40]]


# Disks.

QUICK = ["--set", "network.hidden=[32]", "--set", "strategy.every=256", "--epochs", "30"]


@pytest.mark.long
def test_a_full_temporary_folder_costs_time_alone(start: Start, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with small_disk("32k") as disk:
        environment = {"TMPDIR": str(disk)}
        command = start_training(start, prep, out, "static", *QUICK, environment=environment)
        until(lambda: "journal cannot be written" in command.output(), what="a full disk")
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        assert command.wait() == 0, command.output()
    assert "journal is written again" in command.output()
    summary = summary_of(out)
    assert summary["learners_lost"] == 0
    assert check_coverage(out, summary) == []


@pytest.mark.long
def test_a_temporary_folder_that_stays_full_ends_the_run(
    start: Start, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with small_disk("32k") as disk:
        environment = {"TMPDIR": str(disk)}
        command = start_training(
            start, prep, out, "static", *QUICK, timeout=1.0, environment=environment
        )
        assert command.wait() == 2, command.output()
    output = command.output()
    assert "Traceback" not in output
    assert "could not be written for 6 s (No space left on device); make room, and go on" in output
    again = start_training(start, prep, out, "static", *QUICK, "--resume")
    assert again.wait() == 0, again.output()
    assert summary_of(out)["ended"] == "finished"


def limited(limit: str, *arguments: object, cwd: Path) -> tuple[int, str]:
    """A command under a limit of the shell; its status and all that it said."""
    words = [sys.executable, "-m", "unisono", *(str(a) for a in arguments)]
    quoted = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        ["bash", "-c", f"ulimit {limit}; exec {quoted}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.long
def test_checkpoints_that_cannot_be_written_do_not_end_a_run(prep: Path, tmp_path: Path) -> None:
    """Files may have 64 kB here, and the model has more: only the end cannot be kept."""
    words = ["train", prep, "--out", "run", "--epochs", "2", "--set", "network.hidden=[128]"]
    status, output = limited("-f 64", *words, cwd=tmp_path)
    assert status == 2 and "Traceback" not in output, output
    assert output.count("could not be written (learner 0:") == 2
    assert "100.0%  held out" in output
    assert "cannot write run/model.safetensors: File too large" in output.splitlines()[-1]
    status, output = limited("-f unlimited", *words, "--resume", cwd=tmp_path)
    assert status == 0, output
    assert [len(check(folder)) for folder in checkpoints(tmp_path / "run" / "checkpoints")] == [
        3,
        3,
    ]


@pytest.mark.long
def test_shared_memory_that_cannot_be_made_is_told_in_one_line(prep: Path, tmp_path: Path) -> None:
    words = ["train", prep, "--out", "run", "--learners", "2", "--set", "network.hidden=[512]"]
    words += ["--set", "strategy.sharding=static"]
    status, output = limited("-f 64", *words, cwd=tmp_path)
    assert status == 2 and "Traceback" not in output, output
    assert "bytes cannot be made (File too large): raise the limits" in output


@pytest.mark.parametrize(
    ("learners", "files"),
    [
        (2, 16),
        *(pytest.param(1, files, marks=pytest.mark.long) for files in (16, 20, 24)),
        *(pytest.param(2, files, marks=pytest.mark.long) for files in (20, 24)),
    ],
)
def test_few_file_descriptors_are_told_before_anything_is_made(
    files: int, learners: int, prep: Path, tmp_path: Path
) -> None:
    words = ["train", prep, "--out", "run", "--learners", learners]
    status, output = limited(f"-n {files}", *words, cwd=tmp_path)
    assert status == 2 and len(output.splitlines()) == 1, output
    assert output.startswith(f"unisono: a process may have {files} files open here, and a run of")
    assert not (tmp_path / "run").exists()


def test_few_file_descriptors_for_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("kill_coordinator()\n", "pass\n"))
    status, output = limited("-n 24", "launch", "--learners", 2, script, cwd=tmp_path)
    assert status == 2 and len(output.splitlines()) == 1, output
    assert "24 files open" in output
