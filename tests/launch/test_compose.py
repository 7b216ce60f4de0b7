"""The commands of compose.yaml in three network namespaces, in place of three containers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.across import wait_for
from support.hosts import Hosts

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[2]
# A container has processes and a name of its own, and finds the others by their names.
CONTAINER = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts",
    "sh", "-ec", 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"', "sh",
)  # fmt: skip


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def test_what_the_image_is_built_of_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [w for line in lines if line.startswith("COPY ") for w in line.split()[1:-1]]
    ours = {word for word in copied if not word.startswith(("--", "/"))}
    kept = (ROOT / ".dockerignore").read_text().split()
    assert ours == {line.removeprefix("!") for line in kept if line.startswith("!")}
    assert all((ROOT / name).exists() for name in ours)


def test_learners_differ_in_their_rank_alone() -> None:
    learners = [s for name, s in services().items() if name.startswith("learner-")]
    ranks = [learner.pop("environment") for learner in learners]
    assert ranks == [{"PET_NODE_RANK": n} for n in range(3)]
    assert learners[0] == learners[1] == learners[2]


class Containers:
    """The learners of compose.yaml, each in a namespace of its own; ``folder`` is their volume."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        short = "unisono-"  # for sockets
        self._own = [tempfile.TemporaryDirectory(prefix=short) for _ in range(hosts.count)]
        self.running: list[subprocess.Popen[str]] = []

    def up(self, *more: str) -> None:
        """Starts them, as `docker compose up` does after `prepare`; with further options."""
        learners = {n: s for n, s in services().items() if n.startswith("learner-")}
        names = self._folder.parent / "hosts"
        lines = [f"{self._hosts.address(n)} {name}" for n, name in enumerate(learners)]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        for number, (name, service) in enumerate(learners.items()):
            program, *words = shlex.split(service["command"])
            assert program == "torchrun"
            command = [*self._hosts.inside(number), *CONTAINER, name, str(names)]
            command += [sys.executable, "-m", "torch.distributed.run", *words]
            command += ["--set", "network.hidden=[32]", *more]
            given = {key: str(value) for key, value in service["environment"].items()}
            self.running.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env={**os.environ, **given, "TMPDIR": self._own[number].name},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )

    def wait(self) -> list[tuple[int, str]]:
        """Exit status and output of each, when all have ended."""
        outputs = [each.communicate(timeout=200)[0] for each in self.running]
        ended = [(each.returncode, text) for each, text in zip(self.running, outputs, strict=True)]
        self.running.clear()
        return ended

    def kill(self, number: int) -> None:
        """As `docker kill` does: all processes of one are gone at once."""
        os.killpg(self.running[number].pid, signal.SIGKILL)

    def end(self) -> None:
        """Leaves nothing behind."""
        for each in self.running:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.communicate()
        for folder in self._own:
            folder.cleanup()


@pytest.fixture
def containers(tmp_path: Path, prep: Path) -> Iterator[Containers]:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network namespaces need root, iproute2 and unshare")
    hosts = Hosts(3)
    try:
        hosts.build()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    volume = tmp_path / "volume"
    shutil.copytree(prep, volume / "prep")
    made = Containers(hosts, volume)
    yield made
    made.end()
    hosts.remove()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_three_containers_train_together(containers: Containers, tmp_path: Path) -> None:
    containers.up()
    ended = containers.wait()
    assert [status for status, _ in ended] == [0, 0, 0], ended
    for number, (_, text) in enumerate(ended):
        assert f"learner {number} listens on 10.77.0.{number + 1} (eth0)" in text
    summary = json.loads((tmp_path / "volume/run/summary.json").read_text())
    assert (summary["learners"], summary["ended"]) == (3, "finished")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_death_ends_all_and_their_restart_goes_on(containers: Containers, tmp_path: Path) -> None:
    run = tmp_path / "volume" / "run"
    longer = ("--set", "epochs=40", "--set", "checkpoint.every=2000")
    containers.up(*longer)
    wait_for(lambda: any(path.name.isdigit() for path in run.glob("checkpoints/*")))
    containers.kill(2)
    assert all(status != 0 for status, _ in containers.wait())
    assert not (run / "summary.json").exists()
    containers.up(*longer)
    ended = containers.wait()
    assert [status for status, _ in ended] == [0, 0, 0], ended
    assert json.loads((run / "summary.json").read_text())["ended"] == "finished"
