"""Nothing is left behind: no thread, descriptor, mapping or socket file."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.processes import Processes, distributed_test
from unisono.fabric import (
    COORDINATOR,
    CREDIT,
    ConnectionLost,
    CoordinatorFound,
    Member,
    MembersChanged,
    TensorVector,
    View,
    learner,
)
from unisono.fabric.local.host import Host, LocalNode

MEMORY = "memfd:unisono"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count(MEMORY)


def slots_open() -> int:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(1 for link in links if os.path.lexists(link) and MEMORY in os.readlink(link))


def held() -> tuple[int, int, int]:
    return threading.active_count(), descriptors(), mappings()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "not within 100 s"
        time.sleep(0.005)


def view_of(*nodes: LocalNode) -> View:
    return View(1, tuple(Member(node.address, node.endpoint) for node in nodes))


def exchange(a: LocalNode, b: LocalNode) -> None:
    """Messages both ways; some are never received, some never released, some are in the way."""
    for node, other in ((a, b), (b, a)):
        for n in range(4):
            node.send(other.address, "x", {"n": n}, TensorVector(torch.full((30_000,), float(n))))
    for node in (a, b):
        node.receive("x").release()
        node.receive("x")
    a.spawn("waits", lambda: a.receive("never").release())


def cycle(directory: Path, *, sockets: bool) -> None:
    """A coordinator and two learners begin, talk, and end."""
    hosts = [Host(directory if sockets else None)]
    coordinator = hosts[0].node(COORDINATOR)
    learners = []
    for number in range(2):
        if sockets:
            hosts.append(Host(directory))
        node = hosts[-1].node(learner(number), coordinator.endpoint)
        node.port("control", members=True)
        learners.append(node)
    for node in learners:
        node.set_members(view_of(*learners))
    exchange(*learners)
    if sockets:
        kinds = {type(learners[0].receive("control").body) for _ in range(2)}
        assert kinds == {MembersChanged, CoordinatorFound}
        learners[0].send(COORDINATOR, "x", {}, TensorVector.zeros(10))
        coordinator.receive("x").release()
    for host in hosts:
        host.close()


@pytest.mark.parametrize("sockets", [False, True], ids=["one host", "several hosts"])
def test_two_hundred_lives_leave_nothing_behind(tmp_path: Path, sockets: bool) -> None:
    cycle(tmp_path, sockets=sockets)
    before = held()
    for _ in range(200):
        cycle(tmp_path, sockets=sockets)
    assert held() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_hectic")
def test_lives_leave_nothing_behind_when_threads_switch_all_the_time(tmp_path: Path) -> None:
    cycle(tmp_path, sockets=True)
    before = held()
    for _ in range(30):
        cycle(tmp_path, sockets=True)
    assert held() == before


def be_a_victim(directory: Path, survivors: View) -> None:
    """Takes vectors without giving them back, and lends some."""
    node = Host(directory, "victim.sock").node(learner(9))
    node.set_members(survivors)
    for _ in range(3):
        node.send(learner(0), "x", {}, TensorVector(torch.full((1_000_000,), 3.0)))
    held = [node.receive("x") for _ in range(CREDIT)]
    node.send(learner(0), "ready", {"held": len(held)})
    node.receive("never")


def test_a_killed_process_gives_all_memory_and_descriptors_back() -> None:
    gc.collect()  # what other tests have left in tracebacks
    slots, maps = slots_open(), mappings()
    with Processes() as processes:
        directory = processes.directory
        hosts = [Host(directory, f"{number}.sock") for number in range(2)]
        a, b = (host.node(learner(number)) for number, host in enumerate(hosts))
        victim = learner(9)
        view = view_of(a, b)
        members = (*view.members, Member(victim, f"unix:{directory}/victim.sock"))
        for node in (a, b):
            node.set_members(View(2, members))
        processes.start("victim", be_a_victim, directory, view)
        until((directory / "victim.sock").exists)
        a.send(b.address, "x", {}, TensorVector.zeros(1_000_000))
        b.receive("x").release()
        until(lambda: len(hosts[0].slots._free.get(1 << 22, ())) == 1)
        until(lambda: slots_open() == slots + 1)  # one more while a vector of the victim comes in
        for _ in range(CREDIT):
            a.send(victim, "x", {}, TensorVector.zeros(1_000_000))
        a.receive("ready", victim)
        borrowed = [a.receive("x", victim) for _ in range(3)]
        assert slots_open() == slots + CREDIT
        assert mappings() == maps + CREDIT + len(borrowed) + 1
        processes.kill("victim")
        until(lambda: slots_open() == slots)
        for message in borrowed:
            assert isinstance(message.vector, TensorVector)
            assert message.vector.tensor.eq(3.0).all()
            message.release()
        del borrowed, message
        until(lambda: mappings() == maps + 1)
        for _ in range(3 * CREDIT):
            a.send(b.address, "x", {}, TensorVector.zeros(1_000_000))
            b.receive("x").release()
            until(lambda: len(hosts[0].slots._free.get(1 << 22, ())) == 1)
        assert (slots_open(), mappings()) == (slots + 1, maps + 2)
        for host in hosts:
            host.close()
        assert (slots_open(), mappings()) == (slots, maps)


def fork_and_end(rank: int, directory: Path) -> None:
    """A learner whose forked child outlives it; the coordinator hears of the end nevertheless."""
    host = Host(directory, f"{rank}.sock")
    if rank == 0:
        node = host.node(COORDINATOR)
        node.port("x", lost=True)
        assert node.receive("x").sender == learner(1)
        assert node.receive("x", timeout=60).body == ConnectionLost(learner(1))
        (directory / "heard").touch()
        host.close()
        return
    node = host.node(learner(1), f"unix:{directory}/0.sock")
    node.port("control", members=True)
    node.receive("control")
    node.send(COORDINATOR, "x", {})
    child = os.fork()
    if child == 0:
        until((directory / "heard").exists)
        os._exit(0)
    host.close()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_child_does_not_keep_the_connections() -> None:
    distributed_test(fork_and_end, 2)
