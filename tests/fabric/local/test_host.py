"""Hosts of the local fabric: names, greetings, bugs and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unisono.errors import UserError
from unisono.fabric import (
    COORDINATOR,
    CREDIT,
    Cancelled,
    ConnectionLost,
    CoordinatorFound,
    Gone,
    Member,
    TensorVector,
    TimedOut,
    View,
    learner,
)
from unisono.fabric.local.host import Host


def raises(kind: type[BaseException], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def test_who_comes_before_the_node_waits_and_is_heard(tmp_path: Path) -> None:
    early, late = Host(tmp_path), Host(tmp_path)
    a = early.node(learner(0))
    a.meet(Member(learner(1), late.endpoint))
    a.send(learner(1), "x", {"n": 1}, TensorVector.zeros(3))
    time.sleep(0.05)
    b = late.node(learner(1))
    assert b.receive("x", timeout=60).body == {"n": 1}
    early.close()
    late.close()


def test_a_host_without_the_coordinator_is_not_taken_for_it(tmp_path: Path) -> None:
    elsewhere, here = Host(tmp_path, "coordinator"), Host(tmp_path)
    elsewhere.node(learner(9))
    node = here.node(learner(0), elsewhere.endpoint)
    node.port("control", members=True)
    with pytest.raises(TimedOut):
        node.receive("control", timeout=0.2)
    with pytest.raises(Gone):
        node.send(COORDINATOR, "x", {})
    coordinator = elsewhere.node(COORDINATOR)
    assert node.receive("control", timeout=60).body == CoordinatorFound()
    node.send(COORDINATOR, "x", {})
    assert coordinator.receive("x", timeout=60).sender == learner(0)
    here.close()
    elsewhere.close()


def test_a_successor_takes_the_name_over_and_keeps_it(tmp_path: Path) -> None:
    first = Host(tmp_path, "coordinator")
    second = Host(tmp_path, "coordinator")
    node = second.node(COORDINATOR)
    first.close()
    asker = Host(tmp_path)
    asker.node(learner(0)).meet(Member(COORDINATOR, second.endpoint))
    asker.node(learner(1)).meet(Member(COORDINATOR, second.endpoint))
    found = asker.here(learner(1))
    assert found is not None
    found.send(COORDINATOR, "x", {})
    assert node.receive("x", timeout=60).sender == learner(1)
    asker.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too long a name for a socket"):
        Host(tmp_path, "a" * 100)


def test_closing_is_possible_in_any_order_and_twice(tmp_path: Path) -> None:
    hosts = [Host(tmp_path), Host(tmp_path)]
    a, b = (host.node(learner(number)) for number, host in enumerate(hosts))
    a.meet(Member(b.address, b.endpoint))
    a.send(b.address, "x", {}, TensorVector.zeros(10))
    message = b.receive("x")
    hosts[1].close()
    message.release()
    b.close()
    hosts[1].close()
    a.close()
    hosts[0].close()
    assert raises(Cancelled, lambda: a.send(b.address, "x", {}))


def test_a_message_to_nobody_is_lost(tmp_path: Path) -> None:
    host, other = Host(tmp_path), Host(tmp_path)
    node = host.node(learner(0))
    node.send(learner(1), "x", {})
    node.meet(Member(learner(1), other.endpoint))
    other.node(learner(2))
    node.send(learner(1), "x", {}, TensorVector.zeros(10))
    other.close()
    for _ in range(CREDIT - 1):
        node.send(learner(1), "x", {}, TensorVector.zeros(10))
    host.close()


def test_a_bug_in_the_reactor_reaches_the_learners(tmp_path: Path) -> None:
    host = Host(tmp_path)
    node = host.node(learner(0))
    assert host.reactor is not None
    host.reactor.call(lambda: int("a bug"))  # type: ignore[arg-type, return-value]
    with pytest.raises(Cancelled) as cancelled:
        node.receive("never", timeout=5)
    assert isinstance(cancelled.value.__cause__, ValueError)
    host.close()


def test_neighbours_on_one_host_hear_of_each_others_end() -> None:
    host = Host()
    coordinator, node = host.node(COORDINATOR), host.node(learner(0))
    coordinator.port("x", lost=True)
    node.send(COORDINATOR, "x", {"n": 1})
    node.close()
    assert coordinator.receive("x", timeout=60).body == {"n": 1}
    assert coordinator.receive("x", timeout=60).body == ConnectionLost(learner(0))
    host.close()


@pytest.mark.parametrize("acquainted", [False, True])
def test_a_death_is_told_after_what_the_reactor_has_not_read_yet(
    tmp_path: Path, acquainted: bool
) -> None:
    hosts = [Host(tmp_path), Host(tmp_path)]
    a, b = (host.node(learner(number)) for number, host in enumerate(hosts))
    view = View(1, (Member(a.address, a.endpoint), Member(b.address, b.endpoint)))
    for node in (a, b):
        node.set_members(view)
    if acquainted:
        a.send(b.address, "hello", {})
        b.receive("hello", timeout=60)
    tcp_listener = hold_up(hosts[1])
    for n in range(5):
        a.send(b.address, "x", {"n": n}, TensorVector.zeros(10))
    b.spawn("declare", lambda: b.set_members(View(2, view.members[1:])))
    time.sleep(0.05)
    tcp_listener.set()
    for n in range(5):
        assert b.receive("x", a.address).body["n"] == n
    with pytest.raises(Gone):
        b.receive("x", a.address)
    for host in hosts:
        host.close()


def test_the_coordinator_is_gone_after_what_the_reactor_has_not_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = Host(tmp_path, "coordinator"), Host(tmp_path)
    coordinator, node = there.node(COORDINATOR), here.node(learner(0), there.endpoint)
    node.port("control", members=True)
    assert node.receive("control", timeout=60).body == CoordinatorFound()
    tcp_listener = hold_up(here)
    coordinator.meet(Member(node.address, node.endpoint))
    for n in range(5):
        coordinator.send(node.address, "x", {"n": n})
    there.close()
    read_before_it_was_gone = []
    note = lambda to, link: read_before_it_was_gone.append(len(node._port("x")._queue))  # noqa: E731
    monkeypatch.setattr(node, "_link_ended", note)
    tcp_listener.set()
    with pytest.raises(Gone):
        node.receive("y", COORDINATOR)
    assert read_before_it_was_gone == [5]
    for n in range(5):
        assert node.receive("x", COORDINATOR).body["n"] == n
    with pytest.raises(Gone):
        node.receive("x", COORDINATOR)
    here.close()


def test_a_vector_for_a_connection_that_has_ended_costs_no_slot(tmp_path: Path) -> None:
    hosts = [Host(tmp_path), Host(tmp_path)]
    a, b = (host.node(learner(number)) for number, host in enumerate(hosts))
    a.meet(Member(b.address, b.endpoint))
    a.send(b.address, "x", {})
    link = a._links[b.address]
    hosts[1].close()
    for _ in range(CREDIT - 1):
        link.join(60)
        link.send("x", b"{}", TensorVector.zeros(10), None)
    assert [len(free) for free in hosts[0].slots._free.values()] == [1]
    hosts[0].close()


def hold_up(host: Host) -> threading.Event:
    """The host's reactor does nothing until the event is set."""
    tcp_listener, held = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        tcp_listener.wait(60)

    assert host.reactor is not None
    host.reactor.call(wait)
    assert held.wait(60)
    return tcp_listener
