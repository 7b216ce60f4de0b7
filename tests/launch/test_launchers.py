"""A user's own script under torchrun and mpirun: one run, or one line that says why not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.own_script import SCRIPT, is_one_run
from unisono.cli.main import main
from unisono.errors import UserError
from unisono.learner import ranks
from unisono.learner.placement import SingleProcess, find_placement
from unisono.learner.ranks import Rank


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run_all(
    command: Sequence[object], environments: Sequence[dict[str, str]]
) -> list[tuple[int, str]]:
    """Processes side by side, as a launcher has them: exit status and output of each."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI"))}
    running = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**base, "OMP_NUM_THREADS": "1", **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for more in environments
    ]
    try:
        return [(p.wait(300), p.communicate()[0]) for p in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.long
def test_torchrun_makes_one_run_of_a_script(script: Path, tmp_path: Path) -> None:
    """Two solo copies made 90 steps each; and a script may train twice."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    ((status, output),) = run_all([*torchrun, script, tmp_path, "averaging", "allreduce"], [{}])
    assert status == 0, output
    assert is_one_run(tmp_path, "averaging", 2)
    assert is_one_run(tmp_path, "allreduce", 2)


MPI = {
    "open-mpi": {"RANK": "OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE"},
    "mpich": {"RANK": "PMI_RANK", "WORLD_SIZE": "PMI_SIZE"},
}


def mpirun(kind: str, learners: int, **more: str) -> list[dict[str, str]]:
    """What mpirun sets, and nothing that torchrun would."""
    names = MPI[kind]
    return [
        {names["RANK"]: str(n), names["WORLD_SIZE"]: str(learners), **more} for n in range(learners)
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", MPI)
def test_mpirun_with_a_meeting_place_makes_one_run(kind: str, script: Path, tmp_path: Path) -> None:
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ended = run_all([script, tmp_path, "averaging"], mpirun(kind, 2, **given))
    assert [status for status, _ in ended] == [0, 0], ended
    assert is_one_run(tmp_path, "averaging", 2)


def test_mpirun_without_one_and_without_mpi4py_is_refused_by_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "find_spec", lambda name: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for given in mpirun("open-mpi", 2):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        refused = UserError if value_of_rank(given) == 0 else SystemExit
        with pytest.raises(refused) as error:
            find_placement()
        if refused is UserError:
            text = str(error.value)
            assert all(way in text for way in ("unisono[mpi]", "MASTER_ADDR", "unisono launch"))


def value_of_rank(given: dict[str, str]) -> int:
    return int(given[MPI["open-mpi"]["RANK"]])


def test_a_nested_launch_is_refused_in_one_line(
    script: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unisono", "launch", str(script)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said.append("".join(capfd.readouterr()))
    assert said[0].count("\n") == 1 and "torchrun" in said[0] and said[1] == ""


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, 0),
        ({"PMIX_RANK": "2", "SLURM_STEP_NUM_TASKS": "3"}, 2),
        ({"PMIX_RANK": "2"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "0"}, None),
        ({}, None),
    ],
)
def test_ranks_are_read_from_the_environment(
    given: dict[str, str], number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    rank = Rank.from_environment()
    assert (rank and rank.number) == number
    if number is None:
        assert isinstance(find_placement(), SingleProcess)


@pytest.mark.parametrize("given", [("x", "2"), ("2", "2"), ("-1", "2")])
def test_ranks_that_make_no_sense_are_refused(
    given: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", given[0])
    monkeypatch.setenv("WORLD_SIZE", given[1])
    with pytest.raises(UserError, match="RANK"):
        find_placement()
