"""Set-ups for the conformance suite: simulated, threads of one process, and real processes."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unisono.fabric import COORDINATOR, Address, Cancelled, Fabric, Member, View
from unisono.fabric.kernel import Kernel, Network
from unisono.fabric.local import Host, LocalNode
from unisono.fabric.schedules import Schedule, Timed
from unisono.fabric.simulated import SimulatedNode
from unisono.testing.conformance.stage import Ability, Case
from unisono.testing.processes import Parent, Processes


class Setup(Protocol):
    """Brings the players of a case on, and raises if the case fails or does not end."""

    abilities: frozenset[Ability]

    def run(self, case: Case) -> None:
        """Stages the case once."""
        ...


def _view(endpoints: Mapping[Address, str]) -> View:
    members = (Member(a, e) for a, e in endpoints.items() if a != COORDINATOR)
    return View(1, tuple(members))


class Simulated:
    """Greenlets on a virtual clock."""

    abilities = frozenset(Ability)

    def __init__(self, schedule: Callable[[], Schedule] = Timed) -> None:
        self._schedule = schedule

    def run(self, case: Case) -> None:
        """Runs until every player has ended; raises ``Stuck`` if they do not."""
        kernel = Kernel(schedule=self._schedule(), network=Network(latency=0.001), limit=1e4)
        play = _SimulatedPlay(kernel, case)
        for address in case.players:
            play.start(address)
        kernel.run()


class _SimulatedPlay:
    """Is the stage of every player at once: a greenlet may do all that the kernel can do."""

    def __init__(self, kernel: Kernel, case: Case) -> None:
        self._kernel = kernel
        self._case = case
        self._lives: dict[Address, int] = {}
        self.view = _view({address: f"sim:{address}" for address in case.players})
        self.kill = kernel.kill
        self.pause, self.resume = kernel.pause, kernel.resume
        self.cut, self.heal = kernel.cut, kernel.heal

    def start(self, address: Address) -> Member:
        node = SimulatedNode(self._kernel, address)
        stage = _SimulatedStage(self, self._lives.get(address, 0))
        self._lives[address] = stage.life + 1
        node.set_members(self.view)

        def main() -> None:
            self._case.play(node, stage)
            node.close()

        self._kernel.main(node, main)
        return Member(address, node.endpoint)
