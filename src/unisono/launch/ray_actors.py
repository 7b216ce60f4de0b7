"""What Ray starts on the machines of a cluster: the coordinator, and learners.

Ray carries these objects' calls and their ends; vectors and the run's messages travel on the
fabric.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import traceback
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from unisono.coordinator.client import Abandoned, CoordinatorLost
from unisono.errors import Diverged, UserError
from unisono.fabric.network.endpoints import address_of
from unisono.launch.coordinator_main import coordinate, host_in
from unisono.launch.learner_job import LearnerJob
from unisono.launch.ray_engine import load_ray
from unisono.launch.ray_output import print_end
from unisono.learner.placement import DIRECTORY, INTERFACE, LEARNER


class ReportKind(Enum):
    """How a learner's part ended."""

    READY = "ready"
    """It has not: it is about to begin."""
    UNFIT = "unfit"
    """This machine cannot do the work; another may."""
    FINISHED = "finished"
    ABANDONED = "abandoned"
    """Another one failed."""
    CUT_OFF = "cut off"
    """The coordinator could not be reached: not an error of the learner."""
    DIVERGED = "diverged"
    """Its steps are not finite; the others may go on."""
    FAILED = "failed"
    """A bug, or bad input."""


class Report(NamedTuple):
    """What a learner's actor says."""

    kind: ReportKind
    text: str = ""
    host: str = ""
    node: str = ""
    pid: int = 0


def folders_of(run: str) -> list[Path]:
    """What the learners of a run have on this machine for their sockets, one folder a process."""
    return list(Path(tempfile.gettempdir()).glob(f"{run}.*"))


class CoordinatorActor:
    """The coordinator of a run, on the machine that the run was started on.

    Its journal is on that machine's disk, so it can be killed and started again as often as one
    likes; Ray does that, and calls ``serve`` once more.
    """

    def __init__(
        self,
        directory: str,
        expected: int,
        timeout: float,
        metrics: str | None,
        address: str,
        environment: Mapping[str, str],
    ) -> None:
        self._directory = Path(directory)
        self._expected = expected
        self._timeout = timeout
        self._metrics = None if metrics is None else Path(metrics)
        os.environ.update(environment)
        chosen = os.environ.get(INTERFACE, "")
        self._host = host_in(self._directory, address_of(chosen) if chosen else address)

    def endpoint(self) -> str:
        """Where it is reached, in this incarnation and the next ones."""
        return self._host.endpoint

    def serve(self) -> dict[str, Any]:
        """Serves to the end of the run; what it knows then."""
        return coordinate(
            self._host,
            self._directory,
            expected=self._expected,
            timeout=self._timeout,
            metrics=self._metrics,
            waits_for_all=True,
        )


class LearnerActor:
    """One learner; this process is its process."""

    def __init__(self, work: LearnerJob, environment: Mapping[str, str], run: str) -> None:
        for folder in folders_of(run):
            if not Path("/proc", folder.suffix[1:]).exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
        self._folder = Path(tempfile.gettempdir(), f"{run}.{os.getpid()}")
        self._folder.mkdir(mode=0o700)
        os.environ.update({**environment, DIRECTORY: str(self._folder)})
        self._work = work
        self._run = run
        self._node: str = load_ray().get_runtime_context().get_node_id()

    def prepare(self) -> Report:
        """Gets ready; says where it is, or why it cannot work there."""
        try:
            self._work.prepare()
        except UserError as error:
            return self._report(ReportKind.UNFIT, str(error))
        return self._report(ReportKind.READY)

    def run(self) -> Report:
        """Takes part in the run to its end."""
        report = self._take_part()
        shutil.rmtree(self._folder, ignore_errors=True)
        print_end(self._run, int(os.environ[LEARNER]))
        return report

    def _take_part(self) -> Report:
        try:
            self._work.run()
        except Abandoned as abandoned:
            return self._report(ReportKind.ABANDONED, f"stopped, because {abandoned.line}")
        except CoordinatorLost as lost:
            return self._report(ReportKind.CUT_OFF, str(lost))
        except Diverged as error:
            return self._report(ReportKind.DIVERGED, str(error))
        except UserError as error:
            return self._report(ReportKind.FAILED, str(error))
        except SystemExit as end:
            if end.code not in (None, 0):
                return self._report(ReportKind.FAILED, f"exit status {end.code}")
        except Exception:
            return self._report(ReportKind.FAILED, traceback.format_exc())
        return self._report(ReportKind.FINISHED)

    def _report(self, kind: ReportKind, text: str = "") -> Report:
        return Report(kind, text, platform.node(), self._node, os.getpid())
