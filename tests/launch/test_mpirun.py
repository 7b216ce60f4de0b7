"""Runs that mpirun starts: training, own loops, deaths, and two hosts."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.commands import check_coverage, summary_of, until
from support.hosts import Hosts
from support.mpi import MPICH, OPEN_MPI, Mpi
from support.own_script import SCRIPT, is_one_run

SETS = ["network.hidden=[32]", "minibatch=64", "threads=1", "validation.enabled=false"]
BOTH = [OPEN_MPI, MPICH]
Find = Callable[[str], Mpi]


@pytest.fixture
def find() -> Iterator[Find]:
    """An implementation by its name; no process is left, whatever happens."""
    found: list[Mpi] = []
    with tempfile.TemporaryDirectory(prefix="unisono-", ignore_cleanup_errors=True) as folder:

        def make(name: str) -> Mpi:
            found.append(Mpi(name, Path(folder)))
            return found[-1]

        yield make
        for mpi in found:
            mpi.end()


def train(prep: Path, out: Path, strategy: str, epochs: int, *more: str) -> list[str]:
    sets = [part for text in [*SETS, f"epochs={epochs}"] for part in ("--set", text)]
    words = ["-m", "unisono", "train", str(prep), "--out", str(out), "--strategy", strategy]
    return [*words, *sets, *more]


@pytest.mark.parametrize("name", [OPEN_MPI, pytest.param(MPICH, marks=pytest.mark.long)])
def test_mpirun_trains_one_run(find: Find, name: str, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = find(name).run(2, *train(prep, out, "averaging", 1))
    assert job.wait(250) == 0, job.output
    summary = summary_of(out)
    assert (summary["learners"], summary["ended"]) == (2, "finished")
    check_coverage(out, summary)
    assert "has started 2 learners, and ends all if one dies" in job.output
    assert "listens on" not in job.output, "on one machine nothing listens on a network"


@pytest.mark.long
@pytest.mark.parametrize("name", BOTH)
def test_a_script_under_mpirun_may_train_twice(find: Find, name: str, tmp_path: Path) -> None:
    """MPI can be initialised once only."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = find(name).run(3, script, tmp_path, "averaging", "gossip-random")
    assert job.wait(250) == 0, job.output
    assert is_one_run(tmp_path, "averaging", 3)
    assert is_one_run(tmp_path, "gossip-random", 3)


OWN_MPI = "from mpi4py import MPI\n"
AFTERWARDS = "assert sum(MPI.COMM_WORLD.allgather(1)) == 2\n"


@pytest.mark.long
@pytest.mark.parametrize("name", BOTH)
def test_a_script_that_uses_mpi_itself_goes_on_using_it(
    find: Find, name: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OWN_MPI + SCRIPT + AFTERWARDS)
    job = find(name).run(2, script, tmp_path, "averaging")
    assert job.wait(250) == 0, job.output
    assert is_one_run(tmp_path, "averaging", 2)


@pytest.mark.long
@pytest.mark.parametrize(("name", "other"), [(OPEN_MPI, MPICH), (MPICH, OPEN_MPI)])
def test_the_library_of_another_mpi_is_refused_in_one_line(
    find: Find, name: str, other: str, tmp_path: Path
) -> None:
    """Each process would be alone in it."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = find(name).run(2, script, tmp_path, "averaging", library=find(other).library)
    assert job.wait(120) != 0
    lines = [line for line in job.output.splitlines() if line.startswith("unisono:")]
    assert len(lines) == 1 and "but mpi4py has loaded another MPI" in lines[0]
    assert "Traceback" not in job.output


def start_and_kill(mpi: Mpi, words: list[str], out: Path, victim: int, *options: str) -> str:
    """Kills one of three ranks in mid-run; what mpirun has said, and how it ended."""
    job = mpi.run(3, *words, options=options)

    def trains() -> bool:
        assert job.process.poll() is None, job.output
        metrics = out / "metrics.jsonl"
        has_checkpoint = bool(list(out.glob("checkpoints/*")))
        return has_checkpoint and metrics.is_file() and '"lost"' not in metrics.read_text()

    until(trains, 200, "a checkpoint")
    os.kill(job.rank(victim), signal.SIGKILL)
    return f"{job.wait(250)} {job.output}"


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server", "allreduce"])
def test_open_mpi_with_ulfm_survives_a_death(
    find: Find, prep: Path, tmp_path: Path, strategy: str
) -> None:
    out = tmp_path / "run"
    words = train(prep, out, strategy, 12, "--set", "checkpoint.every=2000")
    said = start_and_kill(find(OPEN_MPI), words, out, 1, "--with-ft", "ulfm")
    assert said.startswith("0 "), said
    assert "if one is killed the others go on (ULFM)" in said
    assert "learner 1 was lost (its process ended); the others go on" in said
    summary = summary_of(out)
    assert (summary["ended"], summary["learners_lost"]) == ("finished", 1)
    counts = summary["minibatches"]
    assert isinstance(counts, dict)
    assert counts["leased"] == counts["committed"] + counts["skipped"] + counts["returned"]


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", BOTH)
def test_a_death_ends_the_job_and_resume_goes_on(
    find: Find, name: str, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = train(prep, out, "averaging", 12, "--set", "checkpoint.every=2000")
    mpi = find(name)
    said = start_and_kill(mpi, words, out, 1)
    assert not said.startswith("0 "), said
    assert "go on from a checkpoint then (--resume)" in said
    assert "Traceback" not in said
    assert not (out / "summary.json").exists()
    job = mpi.run(3, *words, "--resume")
    assert job.wait(250) == 0, job.output
    assert summary_of(out)["ended"] == "finished"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_rank_0_has_the_coordinator_so_its_death_ends_the_run(
    find: Find, prep: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    more = ["--set", "checkpoint.every=2000", "--set", "timeout_s=2"]
    words = train(prep, out, "averaging", 12, *more)
    said = start_and_kill(find(OPEN_MPI), words, out, 0, "--with-ft", "ulfm")
    assert not said.startswith("0 "), said
    assert "go on from a checkpoint with --resume" in said
    assert "Traceback" not in said


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    made = Hosts(2)
    try:
        made.build()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.remove()


LAUNCHER = {
    OPEN_MPI: "--mca plm_ssh_agent {} --host {}:1,{}:1 --map-by node",
    MPICH: "-launcher-exec {} -hosts {},{}",
}
"""How each starts processes of other hosts: with a program in the place of ssh."""


NAMED = 'hostname $0 && exec "$@"'
"""Open MPI takes hosts of one name for one host."""
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
case $host in"""


@pytest.mark.long
@pytest.mark.parametrize("name", BOTH)
def test_ranks_of_two_hosts_find_each_other(
    find: Find, hosts: Hosts, name: str, prep: Path, tmp_path: Path
) -> None:
    named = [[*hosts.inside(n), "unshare", "-u", "sh", "-c", NAMED, f"host{n}"] for n in range(2)]
    cases = [f'{hosts.address(n)}) exec {shlex.join(named[n])} sh -c "$*";;' for n in range(2)]
    ssh = tmp_path / "ssh"
    ssh.write_text("\n".join([SSH, *cases, "esac"]))
    ssh.chmod(0o700)
    options = LAUNCHER[name].format(ssh, hosts.address(0), hosts.address(1)).split()
    out = tmp_path / "run"
    words = train(prep, out, "averaging", 2)
    job = find(name).run(2, *words, options=options, inside=named[0])
    assert job.wait(250) == 0, job.output
    for number in range(2):
        assert f"learner {number} listens on {hosts.address(number)} (eth0)" in job.output
    assert summary_of(out)["ended"] == "finished"
