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


def check_memory(learners: int) -> None:
    """Whether so many learners can fit into memory at all.

    Raises:
        UserError: they cannot; the kernel would kill them one by one.
    """
    total, _ = memory()
    if learners * _LEAST_MEMORY > total:
        raise UserError(
            f"{counted(learners, 'learner')} need at least {learners * _LEAST_MEMORY / _GIB:.0f} "
            f"GiB of memory, and this machine has {total / _GIB:.0f}: start fewer"
        )


def warn_of_crowd(learners: int) -> None:
    """More learners than cores are allowed; they are slow, and may not fit into memory."""
    cores = len(os.sched_getaffinity(0))
    if learners > cores:
        _log.warning(
            "unisono: %s on %s: they take turns, and each needs some 0.4 GiB of memory",
            counted(learners, "learner"),
            counted(cores, "core"),
        )
