"""Places that take connections and never speak: who says so, who waits, who is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from unisono.fabric import (
    COORDINATOR,
    Cancelled,
    ConnectionLost,
    Member,
    TimedOut,
    learner,
)
from unisono.fabric.local.host import Host
from unisono.fabric.network.auth import make_credentials
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.tcp_listener import NetworkSettings

CREDENTIALS = make_credentials()
A, B = learner(0), learner(1)


@pytest.fixture
def deaf() -> Iterator[SocketAddress]:
    """A place at which connections are taken, and nobody ever speaks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield SocketAddress("127.0.0.1", listener.getsockname()[1])


def impatient_host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr("unisono.fabric.network.handshake.SHAKE_S", 0.1)
    return Host(network=NetworkSettings(CREDENTIALS, "127.0.0.1", patience=0.5))


def test_a_learner_that_cannot_reach_another_says_so(
    deaf: SocketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = impatient_host(monkeypatch)
    try:
        node = host.node(A)
        node.meet(Member(B, str(deaf)))
        node.port("x")
        with pytest.raises(Cancelled) as told:
            node.send(B, "x", {})
            node.receive("x")
        assert "cannot reach learner 1" in str(told.value.__cause__)
    finally:
        host.close()


def test_a_learner_that_is_cut_off_itself_waits(
    deaf: SocketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = impatient_host(monkeypatch)
    try:
        node = host.node(A, str(deaf))
        node.meet(Member(B, str(deaf)))
        node.port("x")
        node.spawn("send", lambda: node.send(B, "x", {}))
        with pytest.raises(TimedOut):
            node.receive("x", timeout=2.0)
    finally:
        host.close()


def test_a_learner_that_the_coordinator_cannot_reach_is_lost(
    deaf: SocketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = impatient_host(monkeypatch)
    try:
        node = host.node(COORDINATOR)
        node.port("x", lost=True)
        node.meet(Member(B, str(deaf)))
        node.spawn("send", lambda: node.send(B, "y", {}))
        assert node.receive("x", timeout=30.0).body == ConnectionLost(B)
    finally:
        host.close()
