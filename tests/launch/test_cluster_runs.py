"""Runs on several Ray nodes: who may take part, late joins, scripts, resuming, authentication."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.commands import CONTENDERS, Command, check_coverage, lines_of, summary_of, until
from support.ray_hooks import PREP_HERE, environment
from support.ray_nodes import RayNodes
from unisono.data import synthesise
from unisono.learner.checkpoint_files import DamagedError, check

Start = Callable[..., Command]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

SMALL = [
    "--set", "minibatch=64", "--set", "network.hidden=[64]", "--set", "threads=1",
    "--set", "timeout_s=20", "--set", "validation.enabled=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(2)
    yield nodes
    nodes.close()


def trained(out: Path) -> int:
    """Minibatches that the learners have trained, by their logs."""
    logs = (out / "logs").glob("*.log")
    return sum(log.read_text().count('"trained"') for log in logs)


@pytest.mark.parametrize("way", CONTENDERS)
def test_a_join_in_the_last_hundredth(
    start: Start, nodes: RayNodes, prep: Path, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "run"
    nodes.join()
    try:
        command = start(
            "train", prep, "--out", out, "--cluster", nodes.address, "--learners", "2:3",
            "--strategy", *CONTENDERS[way], "--epochs", 4, *SMALL,
            environment=environment(pace_s=0.03, late=2, marks=tmp_path),
        )  # fmt: skip
        until(lambda: trained(out) > 0.985 * 1200, 300, f"the end to be near: {command.output()}")
        (tmp_path / "go").touch()
        assert command.wait(300) == 0, command.output()
    finally:
        nodes.remove()
    summary = summary_of(out)
    assert summary["minibatches"]["committed"] == 1200  # type: ignore[index]
    assert summary["learners_lost"] == 0
    check_coverage(out, summary)


def test_a_node_with_another_prep_gets_no_learners(
    start: Start, nodes: RayNodes, prep: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    synthesise(
        other, speakers=3, utterances_per_speaker=2, frames_per_utterance=50, states=30,
        dimension=20, seed=2, noise=1.0,
    )  # fmt: skip
    out = tmp_path / "run"
    for place, reason in ((other, "differs: its fingerprint is"), (tmp_path / "none", "none")):
        nodes.join({PREP_HERE: str(place)})
        try:
            command = start(
                "train", prep, "--out", out / place.name, "--cluster", nodes.address,
                "--learners", "2:5", "--epochs", 3, *SMALL,
                environment=environment(pace_s=0.02),
            )  # fmt: skip
            assert command.wait(300) == 0, command.output()
        finally:
            nodes.remove()
        lines = [x for x in command.output().splitlines() if x.startswith("no learner on ")]
        assert len(lines) == 1, command.output()
        assert reason in lines[0]
        assert summary_of(out / place.name)["learners_joined"] == 0


def test_no_node_has_the_prep(start: Start, nodes: RayNodes, prep: Path, tmp_path: Path) -> None:
    command = start(
        "train", prep, "--out", tmp_path / "run", "--cluster", nodes.address, "--learners", 2,
        *SMALL, environment=environment(prep=tmp_path / "nowhere"),
    )  # fmt: skip
    assert command.wait(300) == 2
    assert "no machine can do the work" in command.output().splitlines()[-1]


SCRIPT = """
import sys, torch, unisono
from torch.utils.data import TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(5_000, 4), torch.zeros(5_000, dtype=torch.long))
log = f"learner-{unisono.learner.placement.find_placement().number}.log"
with unisono.Learner(model, optimizer, "averaging", log=log) as learner:
    for step, (x, y) in enumerate(learner.draw(data, epochs=4, batch_size=20)):
        learner.step(torch.nn.functional.cross_entropy(model(x), y))
        if sys.argv[1] == "fail" and step == 100 and learner.number == 1:
            raise RuntimeError("a bug of learner 1")
"""


def test_a_script_of_the_users_own(start: Start, nodes: RayNodes, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = start("launch", "--cluster", nodes.address, "--learners", 2, script, "well")
    assert command.wait(300) == 0, command.output()
    logs = [tmp_path / f"learner-{number}.log" for number in range(2)]
    assert all(lines_of(log) > 100 for log in logs)


LAST_LINES = """
for line in range(20):
    print("line", line, "of learner", learner.number, file=(sys.stdout, sys.stderr)[line % 2])
"""


@pytest.mark.parametrize("time", range(3))  # Ray brings them in time by chance, now and then
def test_the_last_lines_of_a_script_are_printed(
    start: Start, nodes: RayNodes, tmp_path: Path, time: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + LAST_LINES)
    command = start("launch", "--cluster", nodes.address, "--learners", 2, script, "well")
    assert command.wait(300) == 0, command.output()
    said = command.output()
    expected = [f"line {line} of learner {number}" for line in range(20) for number in range(2)]
    assert [line for line in expected if line not in said] == []
    assert "this is all" not in said


def test_an_exception_ends_the_run_on_all_nodes(
    start: Start, nodes: RayNodes, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = start("launch", "--cluster", nodes.address, "--learners", 2, script, "fail")
    assert command.wait(300) == 2
    output = command.output()
    assert output.count("RuntimeError: a bug of learner 1") == 1, output
    assert re.search(r"^unisono: learner 1 failed on ", output, re.MULTILINE)
    until(lambda: not nodes.processes("ray::LearnerActor"), what="the actors to end")


def is_whole(folder: Path) -> bool:
    try:
        check(folder)
    except DamagedError:
        return False
    return True


def test_the_command_dies_and_the_run_is_resumed(
    start: Start, nodes: RayNodes, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = start(
        "train", prep, "--out", out, "--cluster", nodes.address, "--learners", 2, "--epochs", 8,
        "--strategy", *CONTENDERS["static"], *SMALL, "--set", "checkpoint.every=4800",
        environment=environment(pace_s=0.03),
    )  # fmt: skip
    checkpoints = out / "checkpoints"
    until(lambda: any(is_whole(folder) for folder in checkpoints.glob("*")), what="a checkpoint")
    os.kill(command.process.pid, signal.SIGKILL)
    until(lambda: not nodes.processes("ray::LearnerActor"), what="the actors to end")
    newest = sorted(folder for folder in checkpoints.glob("*") if is_whole(folder))[-1]
    kept = json.loads((newest / "pool.json").read_text())["committed"]
    again = start("train", "--out", out, "--resume")
    assert again.wait(300) == 0, again.output()
    summary = summary_of(out)
    done = sum(stop - first for first, stop in kept)
    assert 0 < done < 2400
    assert summary["minibatches"]["committed"] == 2400 - done  # type: ignore[index]
    assert (out / "model.safetensors").is_file()


def test_the_doctor_looks_at_every_node(start: Start, nodes: RayNodes) -> None:
    command = start("doctor", "--cluster", nodes.address, environment=environment())
    assert command.wait(300) == 0, command.output()
    rows = [line.split() for line in command.output().splitlines()]
    assert sum("torch" in row for row in rows) == 2
    assert sum("clock" in row for row in rows) == 2
    (link,) = [row for row in rows if "to" in row and "MB/s" in row]
    assert float(link[link.index("MB/s") - 1]) > 1


class Guarded:
    """A head and a second node as `ray start` makes them, with Ray's token asked for."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "auth_token"),
        }
        (folder / "auth_token").write_text("7" * 64)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        port = self.address.rpartition(":")[2]
        self._running: list[subprocess.Popen[bytes]] = []
        try:
            self._start("head", "--head", "--port", port, "--include-dashboard=false")
            self._start("other", "--address", self.address)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        command += ["--object-store-memory=80000000", *arguments]
        log = self._folder / f"{name}.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self._running.append(process)

        def up() -> bool:
            assert process.poll() is None, log.read_text()
            return "Ray runtime started" in log.read_text()

        until(up, what=f"ray start: {log}")

    def close(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            process.wait(300)


def test_rays_own_authentication(start: Start, prep: Path, tmp_path: Path) -> None:
    """As the guide has it: who has the token trains, who has not is told so in one line."""
    guarded = Guarded(tmp_path)
    arguments = ["train", prep, "--cluster", guarded.address, "--learners", 2, "--epochs", 1]
    try:
        command = start(
            *arguments, *SMALL, "--out", tmp_path / "run", environment=guarded.environment
        )
        assert command.wait(300) == 0, command.output()
        check_coverage(tmp_path / "run", summary_of(tmp_path / "run"))
        wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "8" * 64}
        for given in (wrong, {"RAY_AUTH_MODE": "disabled"}):
            stranger = start(*arguments, *SMALL, "--out", tmp_path / "no", environment=given)
            assert stranger.wait(300) == 2, stranger.output()
            assert "unisono: no Ray cluster at" in stranger.output()
            assert "Traceback" not in stranger.output()
            assert not (tmp_path / "no").exists()
    finally:
        guarded.close()
