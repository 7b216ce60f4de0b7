"""Runs that torchrun starts: on one machine, on two, and after a death."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SETS = ["network.hidden=[32]", "validation.enabled=false"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def torchrun() -> Iterator[Start]:
    """Starts torchrun's agents; whatever happens, no process of theirs is left."""
    agents: list[subprocess.Popen[str]] = []
    folder = tempfile.TemporaryDirectory(prefix="unisono-")  # a short name, for sockets

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torch.distributed.run", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder.name}
        agents.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return agents[-1]

    yield start
    for agent in agents:
        for pid in [*children_of(agent.pid), agent.pid]:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
        agent.wait()
    folder.cleanup()


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def train(prep: Path, out: Path, strategy: str, epochs: int, *more: str) -> list[str]:
    sets = [part for text in [*SETS, f"epochs={epochs}"] for part in ("--set", text)]
    arguments = ["-m", "unisono", "train", str(prep), "--out", str(out), "--strategy", strategy]
    return [*arguments, *sets, *more]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def nodes(start: Start, count: int, arguments: list[str]) -> list[subprocess.Popen[str]]:
    """Machines, as far as torchrun can tell; the kernel knows better, and messages stay inside."""
    common = ["--nnodes", count, "--nproc-per-node", 1, "--master-addr", "127.0.0.1"]
    common += ["--master-port", free_port()]
    return [start(*common, "--node-rank", n, *arguments) for n in range(count)]


def summary_of(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "summary.json").read_text())
    return found


def test_two_ranks_of_one_machine_train_and_listen_nowhere(
    torchrun: Start, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    agent = torchrun("--standalone", "--nproc-per-node", 2, *train(prep, out, "averaging", 1))
    output, _ = agent.communicate(timeout=250)
    assert agent.returncode == 0, output
    assert "listens on" not in output
    summary = summary_of(out)
    assert (summary["learners"], summary["ended"]) == (2, "finished")


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server", "allreduce"])
def test_two_machines_train(torchrun: Start, prep: Path, tmp_path: Path, strategy: str) -> None:
    out = tmp_path / "run"
    agents = nodes(torchrun, 2, train(prep, out, strategy, 2))
    outputs = [agent.communicate(timeout=180)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert "learner 1 listens on 127.0.0.1 (lo)\n" in outputs[1]
    assert "coordinator is at tcp:127.0.0.1:" in outputs[0]
    assert "slowest     learner" in outputs[0]
    summary = summary_of(out)
    assert (summary["learners"], summary["ended"]) == (2, "finished")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_death_on_another_machine_ends_the_run_and_resume_goes_on(
    torchrun: Start, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = train(prep, out, "averaging", 15, "--set", "checkpoint.every=5000")
    agents = nodes(torchrun, 2, arguments)
    deadline = time.monotonic() + 200
    while not list(out.glob("checkpoints/*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (victim,) = children_of(agents[1].pid)
    os.kill(victim, signal.SIGKILL)
    output, _ = agents[0].communicate(timeout=200)
    agents[1].communicate(timeout=200)
    assert [agent.returncode for agent in agents] == [1, 1]
    assert "the run failed: learner 1 was lost (its process ended)" in output
    assert "unisono/training/" not in output, "a traceback of ours"
    assert not (out / "summary.json").exists()
    agents = nodes(torchrun, 2, [*arguments, "--resume"])
    outputs = [agent.communicate(timeout=150)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert summary_of(out)["ended"] == "finished"


@pytest.mark.long
@pytest.mark.timeout(120)
def test_what_rank_0_finds_wrong_is_told_by_all(
    torchrun: Start, prep: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").touch()
    agents = nodes(torchrun, 2, train(prep, tmp_path / "run", "averaging", 1))
    outputs = [agent.communicate(timeout=100)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [1, 1]
    for output in outputs:
        assert "exists already; name another --out, or add --resume" in output
