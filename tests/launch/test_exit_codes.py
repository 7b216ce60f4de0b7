"""How the process of a script ends that has used process groups of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import atexit, os, sys, types
import torch.distributed as dist

if {grouped}:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

class Freed:
    def __del__(self, os=os):
        os.write(1, b"freed ")

sys.modules["kept"] = types.ModuleType("kept")
sys.modules["kept"].freed = Freed()
file = open(sys.argv[1], "w")  # never closed
file.write("written")
atexit.register(print, "registered")
{end}
"""


WELL, BADLY = ("", 0), ("raise ValueError('why')", 1)
EXITS = [("sys.exit(5)", 5), ("sys.exit('why')", 1)]


@pytest.mark.parametrize(
    ("grouped", "end", "status"),
    [
        (True, *WELL),
        (True, *BADLY),
        (False, *WELL),
        pytest.param(False, *BADLY, marks=pytest.mark.long),
        *(pytest.param(g, *end, marks=pytest.mark.long) for g in (True, False) for end in EXITS),
    ],
)
def test_groups_are_not_freed_and_nothing_else_is_lost(
    tmp_path: Path, grouped: bool, end: str, status: int
) -> None:
    script, text = tmp_path / "script.py", tmp_path / "text"
    script.write_text(SCRIPT.format(grouped=grouped, end=end))
    command = [sys.executable, "-m", "unisono.launch.script_main", str(script), str(text)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status, ended.stderr
    assert text.read_text() == "written"
    said = ["registered"] if grouped else ["freed", "registered"]
    assert sorted(ended.stdout.split()) == said
    assert ("why" in ended.stderr) == (status == 1)
