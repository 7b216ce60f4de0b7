"""Clusters that are not there: the code that trains, on a virtual clock."""

from __future__ import annotations

from unisono.simulation.faults import (
    Cut,
    Disturbances,
    Fault,
    Join,
    Kill,
    KillCoordinator,
    Partition,
    Pause,
    Straggler,
)
from unisono.simulation.loops import LoopsRun, run_loops, virtual_now

__all__ = [
    "Cut",
    "Disturbances",
    "Fault",
    "Join",
    "Kill",
    "KillCoordinator",
    "LoopsRun",
    "Partition",
    "Pause",
    "Straggler",
    "run_loops",
    "virtual_now",
]
