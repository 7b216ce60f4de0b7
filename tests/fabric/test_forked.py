"""Children that are forks of their parent."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.alive import is_alive
from support.commands import until

PARENT = """
import os, signal, sys
import child_module
from unisono.fabric.local.child_processes import ChildProcesses

signal.signal(signal.SIGTERM, lambda *_: print("the parent's handler", flush=True))
children = ChildProcesses()
try:
    command = [sys.executable, "-m", "child_module", *sys.argv[1:]]
    children.start("child", command, {"TOLD": "by the parent"}, fork=True)
    if sys.argv[1] == "stop":
        children.stop(20.0)
    elif sys.argv[1] == "orphan":
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        (ended,) = children.wait(60.0)
        print("ended with", ended.status, flush=True)
finally:
    print("parent unwinds", flush=True)
"""

CHILD = """
import os, sys, time
from pathlib import Path

def main():
    how = sys.argv[1]
    print("child", sys.argv[0], how, os.environ["TOLD"], flush=True)
    if how in ("stop", "orphan"):
        Path("ready").write_text(str(os.getpid()))
        time.sleep(600)
    if how == "status":
        sys.exit(7)
    if how == "text":
        sys.exit("in one line")
    if how == "raises":
        raise ZeroDivisionError("a bug")
"""


@pytest.fixture
def parent(tmp_path: Path) -> list[str]:
    (tmp_path / "parent.py").write_text(textwrap.dedent(PARENT))
    (tmp_path / "child_module.py").write_text(textwrap.dedent(CHILD))
    return [sys.executable, str(tmp_path / "parent.py")]


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [("well", 0, ""), ("status", 7, ""), ("text", 1, "in one line"), ("raises", 1, "a bug")],
)
def test_it_ends_as_a_process_of_its_own_would(
    parent: list[str], tmp_path: Path, how: str, status: int, said: str
) -> None:
    done = subprocess.run([*parent, how], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert f"child child_module {how} by the parent" in done.stdout
    assert f"ended with {status}" in done.stdout
    assert said in done.stderr and ("Traceback" in done.stderr) == (how == "raises")
    assert done.stdout.count("parent unwinds") == 1, "the child ran the parent's code"


def test_it_has_no_signal_handlers_of_its_parent(parent: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*parent, "stop"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and "the parent's handler" not in done.stdout
    assert "parent unwinds" in done.stdout


def test_it_dies_with_its_parent(parent: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen([*parent, "orphan"], cwd=tmp_path, stdin=subprocess.PIPE)
    ready = tmp_path / "ready"
    until(lambda: ready.exists() and bool(ready.read_text()))
    child = int(ready.read_text())
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    process.wait(100)
    until(lambda: not is_alive(child))
