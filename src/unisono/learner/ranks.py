"""What another launcher tells its processes of themselves: torchrun, accelerate, mpirun or srun.

They are the learners of one run; ``rank_placement.py`` is where they live. Such a launcher ends all
processes when one of them dies, so a death ends the run, and it goes on from a checkpoint. Only
Open MPI with ULFM lets the others live.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NoReturn

from unisono.errors import UserError

TORCHRUN, OPEN_MPI, MPICH = "torchrun", "Open MPI", "MPICH"
_LAUNCHERS = {
    TORCHRUN: ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    OPEN_MPI: tuple(
        f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ),
    MPICH: ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
}
"""What each launcher calls rank, number of ranks, and the same on one machine."""
_ULFM = "OMPI_MCA_mpi_ft_enable"
"""What ``mpirun --with-ft ulfm`` sets."""


@dataclass(frozen=True)
class Rank:
    """What a launcher tells a process of itself."""

    number: int
    count: int
    local_number: int = 0
    local_count: int = 0
    """0: the launcher does not say."""
    launcher: str = TORCHRUN
    tolerant: bool = False
    """Whether the launcher lets the others live when one of them is killed."""

    @classmethod
    def from_environment(cls) -> Rank | None:
        """None if no launcher has started several of this process.

        Raises:
            UserError: the environment makes no sense.
        """
        given = os.environ
        for launcher, names in _LAUNCHERS.items():
            if names[0] not in given or names[1] not in given:
                continue
            try:
                number, size, local, local_size = (int(given.get(name, "0")) for name in names)
            except ValueError:
                raise UserError(f"{names[0]} and {names[1]} must be numbers") from None
            if not 0 <= number < max(size, 1):
                raise UserError(f"{names[0]} is {number}, and {names[1]} only {size}")
            if size > 1:
                tolerant = launcher == OPEN_MPI and given.get(_ULFM) in ("1", "true")
                return cls(number, size, local, local_size, launcher, tolerant)
        return None

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.local_count == self.count

    @property
    def meets_by_mpi(self) -> bool:
        """Whether the ranks find each other by MPI, and not in a store that the user names."""
        named = all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        return self.launcher != TORCHRUN and not named

    def check(self) -> None:
        """Looks whether the ranks can find each other; only rank 0 says so if they cannot."""
        if self.launcher == TORCHRUN:
            can_meet = all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
            way = ""
        else:
            can_meet = not self.meets_by_mpi or find_spec("mpi4py") is not None
            way = "pip install 'unisono[mpi]', "
        if can_meet:
            return
        self.refuse(
            f"{self.launcher} has started {self.count} processes that do not know each other: "
            f"{way}set MASTER_ADDR and MASTER_PORT for them (a host and a free port of rank 0), or "
            f"start the script with `unisono launch --learners {self.count}`"
        )

    def refuse(self, reason: str) -> NoReturn:
        """Ends this process for a reason that all ranks have; only rank 0 says it.

        Raises:
            UserError: this is rank 0.
        """
        if self.number > 0:
            sys.exit(2)
        raise UserError(reason)

    def on_death(self) -> str:
        """What a death means here; empty where the launcher is known for it."""
        if self.launcher == TORCHRUN:
            return ""
        started = f"{self.launcher} has started {self.count} learners"
        if self.tolerant:
            return (
                f"{started}: if one is killed the others go on (ULFM), unless it is rank 0, which "
                "has the coordinator"
            )
        way = "; with mpirun --with-ft ulfm the others would go on"
        return (
            f"{started}, and ends all if one dies: go on from a checkpoint then (--resume)"
            f"{way if self.launcher == OPEN_MPI else ''}"
        )
