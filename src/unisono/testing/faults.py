"""Faults drawn at random, for clusters of toy learners."""

from __future__ import annotations

import random

from unisono.simulation.faults import Cut, Fault, Join, Kill, KillCoordinator, Pause

__all__ = [
    "Cut",
    "Fault",
    "Join",
    "Kill",
    "KillCoordinator",
    "Pause",
    "draw_faults",
    "learners_hit",
]


def draw_faults(source: random.Random, learners: int, span: float, servers: int = 0) -> list[Fault]:
    """Faults at random times of ``span`` seconds; at least one learner is not killed.

    A third of the members or so is killed, a tenth each is paused and cut off, for longer or
    shorter than the coordinator's patience; the coordinator is killed in two of five runs, and a
    learner comes late in one of five.
    """
    faults: list[Fault] = []
    killed = 0
    for number in range(learners + servers):
        luck = source.random()
        when = source.uniform(0, span)
        if luck < 0.3 and (killed < learners - 1 or number >= learners):
            killed += number < learners
            faults.append(Kill(when, number))
        elif 0.3 <= luck < 0.4:
            faults.append(Pause(when, number, source.uniform(0, 30)))
        elif 0.4 <= luck < 0.5:
            faults.append(Cut(when, number, source.uniform(0, 30)))
    if source.random() < 0.4:
        faults.append(KillCoordinator(source.uniform(0, span), source.uniform(0.01, 3)))
    if source.random() < 0.2:
        faults.append(Join(source.uniform(0, span), learners + servers))
    return faults


def learners_hit(faults: list[Fault]) -> set[int]:
    """The learners that lose their place, or may."""
    return {fault.number for fault in faults if isinstance(fault, Kill | Pause | Cut)}
