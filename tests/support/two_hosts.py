"""Two hosts that talk over TCP, members and strangers that connect to them by hand."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.intruders import Relay
from unisono.fabric import Member, TensorVector, TimedOut, learner
from unisono.fabric.local.host import Host
from unisono.fabric.network.auth import MEMBER, make_credentials, tls_contexts
from unisono.fabric.network.endpoints import SocketAddress, tcp_place
from unisono.fabric.network.frame_stream import LENGTHS
from unisono.fabric.network.tcp_listener import NetworkSettings

CREDENTIALS = make_credentials()
A, B = learner(0), learner(1)
Meddle = Callable[[int, bytes], "bytes | None"]


class Pair:
    """Two hosts, and a relay on the way from A to B."""

    def __init__(self, meddle: Meddle, piece: int) -> None:
        network = NetworkSettings(CREDENTIALS, "127.0.0.1")
        self.hosts = [Host(network=network) for _ in range(2)]
        self.a, self.b = (host.node(learner(n)) for n, host in enumerate(self.hosts))
        self.place = tcp_place(self.b.endpoint)
        self.relay = Relay(self.place, meddle, piece)
        self.a.meet(Member(B, str(self.relay.place)))
        self.b.meet(Member(A, self.a.endpoint))

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self.relay.close()


def talk(pair: Pair, count: int) -> None:
    """A sends bodies and vectors to two ports, B answers; each must come once, in its order."""

    def ask() -> None:
        for n in range(count):
            vector = TensorVector(torch.full((n * 997 % 60_000,), float(n)))
            pair.a.send(B, "x", {"n": n}, vector if n % 3 else None)
            pair.a.send(B, "y", {"n": n, "text": "a" * (n * 89 % 5000)})

    pair.a.spawn("ask", ask)
    for n in range(count):
        message = pair.b.receive("x", timeout=60)
        assert message.body["n"] == n
        if n % 3:
            assert isinstance(message.vector, TensorVector)
            assert torch.equal(message.vector.tensor, torch.full((n * 997 % 60_000,), float(n)))
        message.release()
        assert pair.b.receive("y", timeout=60).body["n"] == n
        pair.b.send(A, "z", {"n": n})
        assert pair.a.receive("z", timeout=60).body["n"] == n
    for port in ("x", "y"):
        with pytest.raises(TimedOut):
            pair.b.receive(port, timeout=0.0)


def member(place: SocketAddress, credentials: str = CREDENTIALS) -> ssl.SSLSocket:
    """A connection of one who has the credentials, before its greeting."""
    sock = socket.create_connection(tuple(place), timeout=60)
    _, calling = tls_contexts(credentials)
    return calling.wrap_socket(sock, server_hostname=MEMBER)


def frame(head: Any, payload: bytes = b"", *, size: int | None = None) -> bytes:
    """A frame as a member sends it; ``size`` is what it announces."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return LENGTHS.pack(len(text), len(payload) if size is None else size) + text + payload


def greeting(**changes: Any) -> dict[str, Any]:
    """What a tester says first to B."""
    said = {"from": "tester-77.0#0", "to": str(B), "at": "tcp:127.0.0.1:9"}
    return {**said, "session": "s", "new": True, **changes}


def drain(sock: socket.socket) -> bytes:
    """All that the other side says until it ends the connection."""
    said = b""
    try:
        while data := sock.recv(65536):
            said += data
    except (ConnectionResetError, ssl.SSLError):
        pass
    return said
