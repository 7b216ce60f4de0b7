"""What processes that are forks of ``multiprocessing``'s server find imported."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_BEFOREHAND = [
    "pytest",
    "support.fabrics",
    "support.loop_launch",
    "support.process_cluster",
    "support.trainings",
    "unisono.speech.prepare",
]


def prepare_forks() -> None:
    """Each would import it anew, 0.3 to 2 s of a core; the server begins with the first."""
    multiprocessing.set_forkserver_preload(_BEFOREHAND)
    # The server of Python 3.11 knows no other path, and passes over what it does not find.
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_TESTS), *filter(None, [given])])
