"""Several Ray nodes on this machine, and the processes of the actors on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'unisono[cluster]'")

from ray.cluster_utils import Cluster

_ROOM = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class RayNodes:
    """A head, on which the coordinator lives beside one learner, and other nodes with one each."""

    def __init__(self, nodes: int) -> None:
        head = {**_ROOM, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others: list[Any] = []
        try:
            for _ in range(nodes - 1):
                self.join()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def join(self, environment: dict[str, str] | None = None) -> None:
        """One more node."""
        self.others.append(self._cluster.add_node(**_ROOM, env_vars=environment))

    def remove(self) -> None:
        """The newest node goes, with everything on it, without a word; until Ray knows of it."""
        self._cluster.remove_node(self.others.pop(), allow_graceful=False)
        self._cluster.wait_for_nodes()

    def close(self) -> None:
        self._cluster.shutdown()

    def processes(self, title: str) -> list[int]:
        """The processes of this cluster's workers with such a title."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and title in _read(entry / "cmdline"):
                parent = _read(entry / "stat").rpartition(")")[2].split()[1:2]
                if parent and self.address in _read(Path("/proc") / parent[0] / "cmdline"):
                    found.append(int(entry.name))
        return sorted(found)

    def coordinator(self) -> int:
        """Its process, as soon as there is one."""
        found: list[int] = []

        def there() -> bool:
            found[:] = self.processes("ray::CoordinatorActor.serve")
            return bool(found)

        until(there, what="the coordinator")
        return found[0]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError:
        return ""  # it has ended


def learners_of(command: Command) -> dict[int, int]:
    """The process of each learner that has ever been ready, by its number."""
    lines = re.findall(r"learner (\d+) is on .*, process (\d+)", command.output())
    return {int(number): int(pid) for number, pid in lines}
