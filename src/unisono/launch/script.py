"""``unisono launch``: a user's own script on one machine or on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from unisono.config import DeviceChoice, read_range
from unisono.errors import UserError
from unisono.launch.learner_job import Script
from unisono.launch.local import Launch, Outcome
from unisono.launch.ray_cluster import ClusterRun
from unisono.launch.ray_engine import cores_for, entered, gpus_for, living_nodes


def launch_script(
    script: Path,
    arguments: tuple[str, ...],
    *,
    learners: str,
    cluster: str = "",
    timeout: float = 10.0,
    threads: int = 0,
    respawn: bool = True,
) -> Outcome:
    """Runs it to the end.

    Raises:
        UserError: there is no such script, or no such cluster.
    """
    if not script.is_file():
        raise UserError(f"there is no script {script}")
    try:
        least, most = read_range(learners)
    except ValueError as error:
        raise UserError(f"--learners {error}, but is {learners!r}") from None
    if not cluster:
        command = [sys.executable, "-m", "unisono.launch.script_main", str(script), *arguments]
        return Launch(
            command=command, learners=most, timeout=timeout, threads=threads, respawn=respawn
        ).run()
    with entered(cluster) as ray:
        nodes = living_nodes(ray)
        gpus = gpus_for(DeviceChoice.AUTO, nodes)
        return ClusterRun(
            ray=ray,
            work=Script.of(script, arguments),
            least=least,
            most=most,
            cores=threads or cores_for(nodes, least, gpus),
            gpus=gpus,
            timeout=timeout,
            respawn=respawn,
        ).run()
