"""Runs of a comparison, each as a process of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Sequence

from unisono.errors import UserError
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.report.outcome import output_of
from unisono.runs.directory import RunDirectory
from unisono.training.compare_variants import ComparisonRun

GRACE_S = 5.0
"""Seconds that a run has to end when the comparison is interrupted."""


def run_jobs(jobs: Sequence[ComparisonRun], at_a_time: int) -> Generator[ComparisonRun, None, None]:
    """Trains each from the beginning, whatever is there; yields them as they end.

    How a run went is in its directory.

    Raises:
        UserError: a directory cannot be written.
    """
    children = ChildProcesses()
    waiting, under_way = list(jobs), dict[str, ComparisonRun]()
    try:
        while waiting or under_way:
            while waiting and len(under_way) < at_a_time:
                job = waiting.pop(0)
                _begin(children, job)
                under_way[str(job.path)] = job
            for ended in children.wait():
                job = under_way.pop(ended.name)
                if ended.killed:
                    with output_of(RunDirectory(job.path)).open("a") as file:
                        file.write(f"unisono: the run was {ended.how}\n")
                yield job
    finally:
        children.stop(GRACE_S)


def _begin(children: ChildProcesses, job: ComparisonRun) -> None:
    """Starts a run; what it prints is kept in its directory, which is made here for that."""
    try:
        if job.path.exists():
            shutil.rmtree(job.path)
        run = RunDirectory.create(job.path, job.config)
        command = [sys.executable, "-m", "unisono", "train", "--out", str(run.path), "--resume"]
        children.start(str(job.path), command, {}, output_of(run))
    except OSError as error:
        raise UserError(f"cannot begin {job.path}: {error.strerror}") from None
