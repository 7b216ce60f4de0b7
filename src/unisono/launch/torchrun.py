"""``torchrun ... -m unisono train``, ``mpirun ... unisono train``: their processes are learners."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from unisono.config import Config
from unisono.coordinator.client import Abandoned
from unisono.errors import Diverged, ProcessLost, UserError
from unisono.fabric.local.child_processes import ChildProcesses
from unisono.launch.coordinator_main import read_outcome
from unisono.learner.meeting import Meeting
from unisono.learner.placement import INTERFACE, at_placement
from unisono.learner.rank_placement import GRACE_S, lead, place_of
from unisono.learner.ranks import Rank
from unisono.learner.uncaught import say_once
from unisono.runs.directory import RunDirectory
from unisono.runs.summary import Summary
from unisono.training.link_precision import decide_link_precision
from unisono.training.train import check, conclude, made, note_start
from unisono.training.worker import Worker


def train_as_rank(rank: Rank, config: Config, out: Path, *, resume: bool = False) -> Summary | None:
    """Trains as one of the launcher's processes; rank 0 has the summary.

    Raises:
        UserError: bad input, or a run that failed.
    """
    signal.signal(signal.SIGTERM, partial(_leave, rank.launcher))
    if config.learner_range != (rank.count, rank.count):
        raise UserError(f"{rank.launcher} has started {rank.count} processes: leave --learners out")
    if config.servers:
        raise UserError(
            f"--servers does not work under {rank.launcher}: leave it out, and learners hold the "
            "shards"
        )
    if config.tracking:
        raise UserError(f"tracking is not for runs under {rank.launcher}: read RUN/metrics.jsonl")
    interface = os.environ.get(INTERFACE) or config.links.interface
    config = config.model_copy(
        update={"links": config.links.model_copy(update={"interface": interface})}
    )
    meeting = Meeting(rank, interface)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        if rank.number == 0:
            return _lead(rank, config, out, resume, meeting, Path(folder))
        _follow(rank, meeting.hear(), config, Path(folder), resume)
        return None


def _leave(launcher: str, number: int, frame: object) -> None:
    sys.exit(f"unisono: {launcher} has ended this process; go on from a checkpoint with --resume")


def _lead(
    rank: Rank, config: Config, out: Path, resume: bool, meeting: Meeting, folder: Path
) -> Summary:
    with ExitStack() as stack:
        try:
            check(config)
            several = not rank.one_machine
            config = decide_link_precision(config, out, resume=resume, several_hosts=several)
            run = stack.enter_context(made(out, config, resume=resume))
        except UserError as error:
            meeting.tell({"error": str(error)})
            raise
        note_start(run, config, 0.0, resumed=resume and bool(run.read_metrics()))
        return conclude(run, config, _train(rank, run, config, resume, meeting, folder))


def _train(
    rank: Rank,
    run: RunDirectory,
    config: Config,
    resume: bool,
    meeting: Meeting,
    folder: Path,
) -> dict[str, Any]:
    """Holds the coordinator, and trains as rank 0; what the coordinator knows at the end."""
    children = ChildProcesses()
    try:
        plan = lead(rank, meeting, children, folder, config.timeout_s, config.links, run.metrics)
        plan["run"] = str(run.path.resolve())
        meeting.tell(plan)
        try:
            _follow(rank, plan, config, folder, resume)
        except Abandoned as abandoned:
            raise UserError(f"the run failed: {abandoned.line}") from None
        while children.running:
            children.wait()
    finally:
        children.stop(GRACE_S)
    outcome = read_outcome(folder, rank.count)
    if outcome["failure"] is not None:
        raise UserError(f"the run failed: {outcome['failure']['text']}")
    return outcome


def _follow(rank: Rank, plan: dict[str, str], config: Config, folder: Path, resume: bool) -> None:
    """Trains as the learner of this rank."""
    placement = place_of(rank, plan, folder, config.timeout_s, config.links)
    with at_placement(placement):
        worker = Worker(
            RunDirectory.open(Path(plan["run"])),
            resume=resume,
            local_number=rank.local_number,
            local_count=rank.local_count or None,
        )
        try:
            worker.run()
        except (Diverged, ProcessLost) as error:
            if not rank.tolerant:
                raise
            say_once(str(error))  # the others go on, unless this process ends with an error
