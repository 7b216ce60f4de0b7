"""mpirun of Open MPI and of MPICH, as PyPI has them, for tests that kill its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

OPEN_MPI, MPICH = "openmpi", "mpich"
_HAS = {OPEN_MPI: "prterun", MPICH: "hydra_pmi_proxy"}
"""A program that only this one has."""
_COORDINATOR = "unisono.launch.coordinator_main"


class Job:
    """An mpirun, with all processes that came of it in sight: they have its TMPDIR."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._mark = f"TMPDIR={environment['TMPDIR']}"
        self._out = Path(environment["TMPDIR"], "output.txt")
        with self._out.open("w") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self._out.read_text()

    def wait(self, seconds: float) -> int:
        return self.process.wait(seconds)

    def rank(self, number: int) -> int:
        """The process number of a rank."""
        for pid, environment, command in self._processes():
            marks = {f"OMPI_COMM_WORLD_RANK={number}", f"PMI_RANK={number}"}
            if marks & set(environment) and _COORDINATOR not in command:
                return pid
        raise LookupError(f"rank {number} does not run")

    def end(self) -> None:
        """Whatever happened, no process is left."""
        for pid, _, _ in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _processes(self) -> Iterator[tuple[int, list[str], list[str]]]:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit():
                    environment = (entry / "environ").read_bytes().decode(errors="replace")
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                    if self._mark in (words := environment.split("\0")):
                        yield int(entry.name), words, command.split("\0")


class Mpi:
    """One implementation."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        prefixes = [Path(sys.prefix), Path(sys.prefix, name)]
        found = [p for p in prefixes if (p / "bin" / _HAS[name]).is_file()]
        if not found or find_spec("mpi4py") is None:
            pytest.skip(f"mpi4py or {name} is missing: pip install 'unisono[mpi]' {name}")
        self._prefix = found[0]
        (self.library,) = (self._prefix / "lib").glob("libmpi.so.[0-9][0-9]")
        self._jobs: list[Job] = []

    def run(
        self,
        ranks: int,
        *words: object,
        options: Sequence[str] = (),
        inside: Sequence[str] = (),
        library: Path | None = None,
    ) -> Job:
        """Starts ``mpirun OPTIONS -n RANKS python WORDS``, with another MPI's library if wanted."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI", "MASTER"))}
        environment = {
            **base,
            "PATH": f"{self._prefix / 'bin'}:{os.environ['PATH']}",
            "MPI4PY_LIBMPI": str(library or self.library),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._folder),
        }
        mpirun = [str(self._prefix / "bin" / "mpirun"), *options]
        command = [*inside, *mpirun, "-n", str(ranks), sys.executable, *map(str, words)]
        self._jobs.append(Job(command, environment))
        return self._jobs[-1]

    def end(self) -> None:
        for job in self._jobs:
            job.end()
