"""`unisono` commands as processes, for tests that kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.learner_logs import read_logs
from unisono.fabric.files import take_lock

CONTENDERS = {
    "static": ["averaging", "--set", "strategy.sharding=static", "--set", "strategy.every=512"],
    "dynamic": ["averaging", "--set", "strategy.sharding=dynamic", "--set", "strategy.every=512"],
    "gossip": ["gossip-random", "--set", "strategy.every=512"],
    "server": ["server", "--set", "strategy.push_every=2"],
}
"""What follows `--strategy` for four strategies that differ in what a death does to them."""


class Command:
    """`unisono ...` as a process of its own, with its children in sight."""

    def __init__(
        self, *arguments: str, cwd: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._out = (cwd / f"command-{len(list(cwd.iterdir()))}.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unisono", *arguments],
            stdout=self._out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )

    def output(self) -> str:
        self._out.flush()
        return Path(self._out.name).read_text()

    def wait(self, seconds: float = 150.0) -> int:
        return self.process.wait(seconds)

    def children(self, word: str) -> list[int]:
        """Process numbers of the children whose command line has this word in it."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except (OSError, IndexError, ValueError):
                continue
            if parent == self.process.pid and any(word in w for w in words):
                found.append(int(entry.name))
        return sorted(found)

    def named(self, name: str) -> int:
        """The process number of the child of this name, as top shows it."""
        for pid in self.children(""):
            with suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    return pid
        raise LookupError(f"{name} does not run")

    def learner(self, number: int) -> int:
        """The process number of a learner, from its name or, of a script, its environment."""
        try:
            return self.named(f"learner {number}")
        except LookupError:
            for pid in self.children(""):
                environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
                if f"UNISONO_LEARNER={number}" in environment:
                    return pid
            raise

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._out.close()


def until(condition: Callable[[], bool], seconds: float = 100.0, what: str = "") -> None:
    """Waits for a condition of another process, which nothing tells us of."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.02)


def is_free(out: Path) -> bool:
    """Whether no process trains a run: those of a command that was killed end after it."""
    with (out / "metrics.jsonl").open("ab") as file:
        return take_lock(file.fileno())


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def summary_of(out: Path) -> dict[str, object]:
    summary: dict[str, object] = json.loads((out / "summary.json").read_text())
    return summary


def check_coverage(out: Path, summary: dict[str, object]) -> list[int]:
    """Every position in exactly one sync round, by the learners' own logs; returns the redone."""
    counts = summary["minibatches"]
    assert isinstance(counts, dict)
    coverage = read_logs(out / "logs")
    total = counts["committed"] + counts["skipped"]
    assert coverage.problems(total) == []
    assert counts["leased"] == counts["committed"] + counts["skipped"] + counts["returned"]
    return coverage.redone


Start = Callable[..., Command]
"""The fixture `start`."""
SLOW_TIMEOUT = 60.0
"""So long that whatever happens soon was not found by silence."""


def later(way: str) -> Any:
    """The same for another way, in the long tests."""
    return pytest.param(way, marks=pytest.mark.long)


def start_training(
    start: Start,
    prep: Path,
    out: Path,
    way: str,
    *more: str,
    timeout: float = SLOW_TIMEOUT,
    environment: dict[str, str] | None = None,
) -> Command:
    return start(
        "train", prep, "--out", out, "--learners", 3, "--epochs", 4, "--strategy", *CONTENDERS[way],
        "--set", "minibatch=64", "--set", "network.hidden=[128]", "--set", "threads=1",
        "--set", f"timeout_s={timeout}", *more, environment=environment,
    )  # fmt: skip
