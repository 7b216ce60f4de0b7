"""Hosts as network namespaces on a bridge: slow links, and a silent partition that heals."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from across import Across, Home, check

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
RATE = ("rate", "100mbit", "burst", "64kb", "latency", "50ms")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Hosts:
    """Some namespaces, each with a cable to one bridge; the bridge is in a namespace of its own."""

    def __init__(self, count: int) -> None:
        self._stem = f"u{os.getpid() % 100_000:x}"
        self._switch = f"{self._stem}-sw"
        self._names = [f"{self._stem}-{n}" for n in range(count)]
        self.homes = [
            Home(f"10.77.0.{n + 1}", ("ip", "netns", "exec", name))
            for n, name in enumerate(self._names)
        ]

    def build(self) -> None:
        for name in (self._switch, *self._names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for n, (name, home) in enumerate(zip(self._names, self.homes, strict=True)):
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{n}")
            ip("-n", name, "link", "set", f"p{n}", "netns", self._switch)
            ip("-n", self._switch, "link", "set", f"p{n}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{home.address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def slow_down(self) -> bool:
        """Every cable at 100 Mbit/s, both ways; False if this kernel cannot."""
        try:
            for n, name in enumerate(self._names):
                for where, device in ((name, "eth0"), (self._switch, f"p{n}")):
                    command = ["tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf"]
                    subprocess.run([*command, *RATE], check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def pull_cable(self, number: int) -> None:
        """Nothing gets through any more, and nobody is told."""
        ip("-n", self._switch, "link", "set", f"p{number}", "down")

    def plug_in(self, number: int) -> None:
        ip("-n", self._switch, "link", "set", f"p{number}", "up")

    def remove(self) -> None:
        for name in (*self._names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """The coordinator's host and three for learners."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made = Hosts(4)
    try:
        made.build()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield made
    made.remove()


@pytest.fixture
def stage(tmp_path: Path, prep: Path, hosts: Hosts) -> Iterator[Callable[..., Across]]:
    runs: list[Across] = []

    def make(strategy: str, epochs: int, **how: object) -> Across:
        runs.append(Across(tmp_path, prep, strategy, 3, epochs, homes=hosts.homes, **how))  # type: ignore[arg-type]
        return runs[-1]

    yield make
    for across in runs:
        across.end()


@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server", "allreduce"])
def test_a_run_across_hosts_with_slow_links(
    stage: Callable[..., Across], hosts: Hosts, strategy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if not hosts.slow_down():
        pytest.skip("this kernel has no tbf to slow links down")
    across = stage(strategy, 2)
    across.start_learners()
    check(across, 0)
    said = capfd.readouterr().err
    for number in range(3):
        assert f"learner {number} listens on 10.77.0.{number + 2} (eth0)" in said


@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server"])
def test_a_short_partition_only_delays(
    stage: Callable[..., Across], hosts: Hosts, strategy: str
) -> None:
    across = stage(strategy, 30, timeout=20.0)
    across.start_learners()
    across.wait_until_it_says('"round"')
    hosts.pull_cable(3)
    time.sleep(3)
    hosts.plug_in(3)
    check(across, 0)


@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server"])
def test_who_is_cut_off_for_long_is_held_for_dead_and_comes_back(
    stage: Callable[..., Across], hosts: Hosts, strategy: str
) -> None:
    # Those who wait for nobody would otherwise be done before it is back.
    across = stage(strategy, 60 if strategy == "averaging" else 300, timeout=6.0)
    across.start_learners()
    across.wait_until_it_says('"round"')
    hosts.pull_cable(3)
    across.wait_until_it_says("silent for 6 s")
    hosts.plug_in(3)
    across.wait_until_it_says("learner-2.0#1")
    outcome = across.finish(0)
    assert outcome["over"] and outcome["failure"] is None
    assert outcome["lost"] == ["learner-2.0#0"] and outcome["joined"] == 4
