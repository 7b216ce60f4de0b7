"""The process from which those of the tests are forked: it has one thread, and what they import."""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from unittest import mock

_BEFOREHAND = [
    "support.fabrics",
    "support.loop_launch",
    "support.process_cluster",
    "support.trainings",
    "unisono.speech.prepare",
]
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@cache
def fork_context() -> ForkServerContext:
    """Forks of a process that has what most tests need: one more costs little."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_BEFOREHAND)
    # The server of Python 3.11 does not take over the path, and would import nothing beforehand.
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with mock.patch.dict(os.environ, path | dict.fromkeys(_ONE_THREAD, "1")):
        forkserver.ensure_running()
    return context
