"""The examples with other libraries, in two processes of which one is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import Command, until

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "tar_shards": "torch",
    "lhotse_cuts": "lhotse",
    "huggingface_stream": "datasets",
    "fabric_loop": "lightning_fabric",
}
"""What each of them is about."""


def kill_a_learner(command: Command) -> bool:
    """Once both are there; whether there was still one to kill."""
    until(lambda: "waits" in command.output())
    try:
        pid = command.learner(1)
    except LookupError:
        return False  # it was too quick
    return subprocess.run(["kill", "-9", str(pid)], check=False).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains(
    name: str, killed: bool, tmp_path: Path, start: Callable[..., Command]
) -> None:
    pytest.importorskip(NEEDS[name])
    script = [str(EXAMPLES / f"{name}.py")]
    if name == "tar_shards":
        script.append(str(tmp_path / "shards"))
        subprocess.run([sys.executable, *script, "--make"], check=True, timeout=100)
    command = start("launch", "--learners", 2, *script)
    died = killed and kill_a_learner(command)
    assert command.wait(250) == 0, command.output()
    assert ("was lost" in command.output()) == died, command.output()
    rights = [float(right) for right in re.findall(r"([\d.]+)% right", command.output())]
    assert rights and max(rights) > 85, command.output()
    if killed and not died:
        pytest.skip("the learner had ended before it could be killed")
