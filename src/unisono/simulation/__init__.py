"""Clusters that are not there: the code that trains, on a virtual clock."""

from __future__ import annotations

from unisono.simulation.faults import Cut, Fault, Join, Kill, KillCoordinator, Pause
from unisono.simulation.loops import LoopsRun, run_loops, virtual_now

__all__ = [
    "Cut",
    "Fault",
    "Join",
    "Kill",
    "KillCoordinator",
    "LoopsRun",
    "Pause",
    "run_loops",
    "virtual_now",
]
