"""Whether so many learners are for this machine."""

from __future__ import annotations

import logging
import os

from unisono.errors import UserError
from unisono.text import counted

_log = logging.getLogger(__name__)


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


def warn_of_crowd(learners: int) -> None:
    """More learners than cores are allowed; they are slow, and may not fit into memory."""
    cores = len(os.sched_getaffinity(0))
    if learners > cores:
        _log.warning(
            "unisono: %s on %s: they take turns, and each needs some 0.4 GiB of memory",
            counted(learners, "learner"),
            counted(cores, "core"),
        )
