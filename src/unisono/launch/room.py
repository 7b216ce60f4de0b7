"""Whether so many learners are for this machine."""

from __future__ import annotations

import logging
import os

from unisono.errors import UserError
from unisono.launch.machine import memory
from unisono.text import counted

_log = logging.getLogger(__name__)
_GIB = 2**30
_LEAST_MEMORY = _GIB // 10
"""Of a learner of the smallest model, beside what all share: Python and torch."""


def check_range(least: int, most: int) -> None:
    """On one machine the number of learners is fixed.

    Raises:
        UserError: it is a range.
    """
    if least != most:
        raise UserError(
            f"--learners {least}:{most} is for a cluster (--cluster auto): on one machine give one "
            f"number, for example --learners {most}"
        )


def check_memory(learners: int, processes: int = 1, servers: int = 0) -> None:
    """Whether so many learners, of so many processes each, and servers can fit into memory at all.

    Raises:
        UserError: they cannot; the kernel would kill them one by one.
    """
    total, _ = memory()
    needed = (learners * processes + servers) * _LEAST_MEMORY
    if needed > total:
        crowd = _crowd(learners, processes)
        crowd += f" and {counted(servers, 'server')}" if servers else ""
        raise UserError(
            f"{crowd} need at least {needed / _GIB:.0f} GiB of memory, and "
            f"this machine has {total / _GIB:.0f}: start fewer"
        )


def warn_of_crowd(learners: int, processes: int = 1) -> None:
    """More processes than cores are allowed; they are slow, and may not fit into memory."""
    cores = len(os.sched_getaffinity(0))
    if learners * processes > cores:
        _log.warning(
            "unisono: %s on %s: they take turns, and each needs some 0.4 GiB of memory",
            _crowd(learners, processes),
            counted(cores, "core"),
        )


def warn_of_shared_gpus(learners: int, gpus: int) -> None:
    """Learners take turns on a GPU that they share, and are seldom sooner there than one alone."""
    if learners > gpus:
        _log.warning(
            "unisono: %s on %s: they take turns, and one learner for each GPU is mostly as soon",
            _crowd(learners, 1),
            counted(gpus, "GPU"),
        )


def _crowd(learners: int, processes: int) -> str:
    each = f" of {processes} processes" if processes > 1 else ""
    return counted(learners, "learner") + each
