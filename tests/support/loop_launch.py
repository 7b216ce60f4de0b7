"""A launch whose learners are forks, of several processes each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import torch

from support import processes_loop, whole_model
from unisono.fabric.local.child_processes import ChildExit
from unisono.launch import script_main
from unisono.launch.learner_processes import LearnerProcesses
from unisono.launch.local import Launch, Outcome

MODULES = (processes_loop, whole_model, script_main)
"""What is launched: a fork has it already."""


class Awaited(LearnerProcesses):
    """Waits for nothing that cannot come."""

    def wait(self, seconds: float | None = None) -> list[ChildExit]:
        assert self.running, "no process is left to wait for"
        return super().wait(seconds)


def launch_loop(
    words: Sequence[str], learners: int, processes: int, timeout: float
) -> tuple[Outcome, list[str]]:
    """How it ended, and what was said."""
    torch.set_num_threads(1)
    lines: list[str] = []
    outcome = Launch(
        command=[sys.executable, "-m", *words],
        learners=learners,
        processes=processes,
        make_children=partial(Awaited, processes),
        timeout=timeout,
        threads=1,
        forks=True,
        say=lines.append,
    ).run()
    return outcome, lines
