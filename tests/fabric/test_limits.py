"""The limit of open files is raised as far as it may be, or the run is refused in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from unisono.errors import UserError
from unisono.fabric.limits import require_files
soft, hard, learners = (int(a) for a in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    require_files(learners)
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "learners", "told"),
    [
        (256, 512, 2, "256 512"),
        (30, 512, 2, "56 512"),
        (
            20,
            40,
            2,
            "a process may have 40 files open here, and a run of 2 learners needs 56: raise the "
            "limit (ulimit -Hn 56, or LimitNOFILE of the service), or use fewer learners",
        ),
    ],
)
def test_the_limit_is_raised_or_told(soft: int, hard: int, learners: int, told: str) -> None:
    command = [sys.executable, "-c", CODE, str(soft), str(hard), str(learners)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told
