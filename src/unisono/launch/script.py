"""``unisono launch``: a user's own script on one machine or on a cluster."""

from __future__ import annotations

import math
import sys
import zipfile
from functools import partial
from pathlib import Path

from unisono.config import DeviceChoice, read_range
from unisono.errors import UserError
from unisono.launch.learner_job import Script
from unisono.launch.learner_processes import LearnerProcesses
from unisono.launch.local import Launch, Outcome
from unisono.launch.ray_cluster import ClusterRun
from unisono.launch.ray_engine import cores_for, entered, gpus_for, living_nodes
from unisono.launch.room import check_memory, check_range, warn_of_crowd
from unisono.text import counted


def launch_script(
    script: str,
    arguments: tuple[str, ...],
    *,
    is_module: bool = False,
    learners: str,
    processes: int = 1,
    cluster: str = "",
    timeout: float = 10.0,
    threads: int = 0,
    respawn: bool = True,
) -> Outcome:
    """Runs it to the end.

    Args:
        script: a file, or the name of a module.
        arguments: what follows it.
        is_module: whether it is a module.
        learners: N, or MIN:MAX on a cluster.
        processes: those of each learner; not on a cluster.
        cluster: a Ray cluster; empty: this machine.
        timeout: seconds that a silent learner is believed to live.
        threads: cores a process; 0: the cores divided among all processes.
        respawn: whether learners that die are replaced.

    Raises:
        UserError: there is no such script, no such cluster, or no learner in the script.
    """
    if not math.isfinite(timeout) or timeout <= 0:
        raise UserError(f"--timeout is {timeout:g}: it must be more than 0 seconds")
    if threads < 0:
        raise UserError(f"--threads is {threads}: it must be 0 or more")
    if processes < 1:
        raise UserError(f"--processes-per-learner is {processes}: it must be at least 1")
    try:
        least, most = read_range(learners)
    except ValueError as error:
        raise UserError(f"--learners {error}, but is {learners!r}") from None
    _check_script(script, is_module=is_module)
    if not cluster:
        check_range(least, most)
        check_memory(most, processes)
        warn_of_crowd(most, processes)
        option = ["-m"] if is_module else []
        command = [sys.executable, "-m", "unisono.launch.script_main", *option, script, *arguments]
        outcome = Launch(
            command=command,
            learners=most,
            processes=processes,
            make_children=partial(LearnerProcesses, processes),
            timeout=timeout,
            threads=threads,
            respawn=respawn,
        ).run()
        if not outcome.failed and not outcome.coordinator["joined"]:
            raise UserError(
                f"{script} has made no unisono.Learner: {counted(most, 'copy', 'copies')} of it "
                "ran, and shared nothing"
            )
        return outcome
    if processes > 1:
        raise UserError("--processes-per-learner is for this machine: leave out --cluster")
    if is_module:
        raise UserError("-m is for this machine: give the path of a script with --cluster")
    with entered(cluster) as ray:
        nodes = living_nodes(ray)
        gpus = gpus_for(DeviceChoice.AUTO, nodes)
        return ClusterRun(
            ray=ray,
            work=Script.of(Path(script), arguments),
            least=least,
            most=most,
            cores=threads or cores_for(nodes, least, gpus),
            gpus=gpus,
            timeout=timeout,
            respawn=respawn,
        ).run()


def _check_script(script: str, *, is_module: bool) -> None:
    if is_module:
        if "/" in script or script.startswith("."):
            raise UserError(f"-m {script}: give the name of a module, as in package.module")
        return
    path = Path(script)
    if not path.is_file():
        raise UserError(f"there is no script {script}")
    with path.open("rb") as file:
        is_text = b"\0" not in file.read(4096)
    if not is_text and path.suffix != ".pyc" and not zipfile.is_zipfile(path):
        raise UserError(f"{script} is no Python script")
