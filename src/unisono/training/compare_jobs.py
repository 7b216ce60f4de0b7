"""Runs of a comparison, each as a process of its own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

from unisono.errors import UserError
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.report.outcome import output_of
from unisono.runs.directory import RunDirectory
from unisono.training.compare_variants import ComparisonRun

SCORE = "score.json"
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
                    output = output_of(RunDirectory(job.path))
                    with suppress(OSError), output.open("a") as file:
                        file.write(f"unisono: the run was {ended.how}\n")
                yield job
    finally:
        children.stop(GRACE_S)


def decode_run(path: Path, data: Path) -> float | None:
    """The word error rate of a run on a test set; what is decoded already is read.

    None where it could not be decoded or scored; why is in the run's ``logs/decode.txt``.
    """
    out = path / "test"
    if not (out / SCORE).is_file():
        if out.exists():
            shutil.rmtree(out)
        children = ChildProcesses()
        command = [sys.executable, "-m", "unisono", "decode", str(path), str(data)]
        try:
            children.start("decode", [*command, "--out", str(out)], {}, path / "logs/decode.txt")
            children.wait()
        finally:
            children.stop(GRACE_S)
    try:
        return float(json.loads((out / SCORE).read_text())["wer"])
    except (OSError, ValueError, KeyError):
        return None


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
