"""Hosts as network namespaces: slow and long links, cut ones, a host that dies, one that joins."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.across import Across, Home, check, wait_for
from support.hosts import Hosts
from unisono.strategies import registry

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
TOGETHER = [name for name in registry.names() if name != "solo"]
HALF_WAY_S = 0.01
Build = Callable[..., Hosts]
Stage = Callable[..., Across]


@pytest.fixture
def build() -> Iterator[Build]:
    """Makes hosts, as many as there are learners, and one more for the coordinator."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made: list[Hosts] = []

    def make(learners: int = 3, delay: float = 0.0) -> Hosts:
        made.append(Hosts(learners + 1, delay))
        try:
            made[-1].build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        return made[-1]

    yield make
    for hosts in made:
        hosts.remove()


@pytest.fixture
def hosts(build: Build) -> Hosts:
    """The coordinator's host and three for learners."""
    return build()


@pytest.fixture
def stage(tmp_path: Path, prep: Path) -> Iterator[Stage]:
    """Runs that begin with three learners, the coordinator on the first host."""
    runs: list[Across] = []

    def make(hosts: Hosts, strategy: str, epochs: int, **how: object) -> Across:
        homes = [Home(hosts.address(n), hosts.inside(n)) for n in range(hosts.count)]
        runs.append(Across(tmp_path, prep, strategy, 3, epochs, homes=homes, **how))  # type: ignore[arg-type]
        return runs[-1]

    yield make
    for across in runs:
        across.end()


@pytest.mark.parametrize("strategy", TOGETHER)
def test_a_run_across_hosts_with_slow_links(
    stage: Stage, hosts: Hosts, strategy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if not hosts.slow_down():
        pytest.skip("this kernel has no tbf to slow links down")
    across = stage(hosts, strategy, 2)
    across.start_learners()
    check(across, 0)
    said = capfd.readouterr().err
    for number in range(3):
        assert f"learner {number} listens on 10.77.0.{number + 2} (eth0)" in said


def round_trip_s(hosts: Hosts, a: int, b: int) -> float:
    """The quickest of some refusals where nobody listens: a packet there, and one back."""
    script = (
        "import socket, sys, time\n"
        "def call():\n"
        "    began = time.monotonic()\n"
        "    assert socket.socket().connect_ex((sys.argv[1], 9)) == 111\n"
        "    return time.monotonic() - began\n"
        "print(min(call() for _ in range(5)))"
    )
    command = [*hosts.inside(a), sys.executable, "-c", script, hosts.address(b)]
    return float(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.parametrize("strategy", TOGETHER)
def test_a_run_across_hosts_far_from_each_other(stage: Stage, build: Build, strategy: str) -> None:
    hosts = build(delay=HALF_WAY_S)
    assert round_trip_s(hosts, 1, 2) >= 2 * HALF_WAY_S
    across = stage(hosts, strategy, 1)
    across.start_learners()
    check(across, 0)
    assert round_trip_s(hosts, 2, 1) >= 2 * HALF_WAY_S


@pytest.mark.parametrize("delay", [0.0, HALF_WAY_S])
@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server", "allreduce"])
def test_the_rest_goes_on_when_a_host_is_gone(
    stage: Stage, build: Build, strategy: str, delay: float
) -> None:
    hosts = build(delay=delay)
    across = stage(hosts, strategy, 6, timeout=6.0)
    across.start_learners()
    across.wait_until_it_says('"event":"round"')
    hosts.kill(3)
    check(across, 1)
    lost = [e for e in across.run.read_metrics() if e["event"] == "lost"]
    assert [(e["learner"], e["reason"]) for e in lost] == [(2, "silent for 6 s")]


def listens(pid: int, address: str) -> bool:
    """Whether anybody listens at an address of the host that a process lives on."""
    digits = socket.inet_aton(address)[::-1].hex().upper()
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()]
    return any(row[1].startswith(digits) and row[3] == "0A" for row in rows)


@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server", "allreduce"])
def test_a_host_that_joins_takes_part(stage: Stage, build: Build, strategy: str) -> None:
    hosts = build(learners=4)
    across = stage(hosts, strategy, 12, timeout=60.0)
    across.start_learners()
    across.wait_until_it_says('"event":"round"')
    # The others would be done before a process has started, so they stand still meanwhile.
    for process in across.learners:
        process.send_signal(signal.SIGSTOP)
    across.start_learner(3)
    wait_for(lambda: listens(across.learners[3].pid, hosts.address(4)))
    for process in across.learners[:3]:
        process.send_signal(signal.SIGCONT)
    check(across, 0)
    events = across.run.read_metrics()
    assert [e["learner"] for e in events if e["event"] == "joined"][3:] == [3]
    [left] = [e for e in events if e["event"] == "left" and e["learner"] == 3]
    assert left["examples"] > 0 and left["rounds"] > 0


@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server"])
def test_a_short_partition_only_delays(stage: Stage, hosts: Hosts, strategy: str) -> None:
    across = stage(hosts, strategy, 30, timeout=20.0)
    across.start_learners()
    across.wait_until_it_says('"event":"round"')
    hosts.pull_cable(3)
    time.sleep(3)
    hosts.plug_in(3)
    check(across, 0)


@pytest.mark.parametrize("strategy", ["averaging", "gossip-random", "server"])
def test_who_is_cut_off_for_long_is_held_for_dead_and_comes_back(
    stage: Stage, hosts: Hosts, strategy: str
) -> None:
    # Those who wait for nobody would otherwise be done before it is back.
    across = stage(hosts, strategy, 300, timeout=6.0)
    across.start_learners()
    across.wait_until_it_says('"event":"round"')
    hosts.pull_cable(3)
    across.wait_until_it_says("silent for 6 s")
    hosts.plug_in(3)
    across.wait_until_it_says("learner-2.0#1")
    outcome = across.finish(0)
    assert outcome["over"] and outcome["failure"] is None
    assert outcome["lost"] == ["learner-2.0#0"] and outcome["joined"] == 4
