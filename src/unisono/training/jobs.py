"""One run of a comparison, as a process of its own."""

from __future__ import annotations

import shutil
import sys

from unisono.events import UserError
from unisono.fabric.children import Children
from unisono.runs.directory import RunDirectory
from unisono.runs.outcome import output_of
from unisono.training.variants import Job

GRACE_S = 5.0
"""Seconds that a run has to end when the comparison is interrupted."""


def run_job(job: Job) -> None:
    """Trains from the beginning, whatever is there; how it went is in the run's directory.

    What the run prints is kept in it; its directory is made here, so that there is a place for it.

    Raises:
        UserError: the directory cannot be written.
    """
    children = Children()
    try:
        if job.path.exists():
            shutil.rmtree(job.path)
        run = RunDirectory.create(job.path, job.config)
        command = [sys.executable, "-m", "unisono", "train", "--out", str(run.path), "--resume"]
        children.start("train", command, {}, output_of(run))
    except OSError as error:
        raise UserError(f"cannot begin {job.path}: {error.strerror}") from None
    try:
        (ended,) = children.wait()
    finally:
        children.stop(GRACE_S)
    if ended.killed:
        with output_of(run).open("a") as file:
            file.write(f"unisono: the run was {ended.how}\n")
