"""Packets over a real socket pair, with a reactor."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from unisono.fabric.local.packets import PacketSocket
from unisono.fabric.local.reactor import Reactor

BIG = "a" * 120_000


class End:
    """One end: keeps what comes."""

    def __init__(self, sock: socket.socket, reactor: Reactor) -> None:
        self.came: list[dict[str, Any]] = []
        self.fds: list[int] = []
        self.ended = threading.Event()
        self.packets = PacketSocket(sock, reactor, self._packet, self.ended.set)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        self.came.append(json.loads(data))
        self.fds += map(os.dup, fds)


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def reactor(errors: list[BaseException]) -> Iterator[Reactor]:
    reactor = Reactor(errors.append)
    yield reactor
    reactor.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield a, b
    a.close()
    b.close()


def write(end: End, **packet: Any) -> None:
    end.packets.write(json.dumps(packet).encode(), [])


def test_what_a_peer_wrote_comes_before_its_end_also_if_it_had_unread_packets(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    raw, sock = pair
    end = End(sock, reactor)
    write(end, unread=True)
    for n in range(5):
        raw.send(json.dumps({"n": n}).encode())
    raw.close()  # the kernel reports a reset, because "unread" was not read
    reactor.run(end.packets.start)
    assert end.ended.wait(60)
    assert [packet["n"] for packet in end.came] == list(range(5))


def test_what_the_socket_does_not_take_waits_in_its_order(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    a, b = (End(sock, reactor) for sock in pair)
    reactor.run(a.packets.start)
    for n in range(50):
        write(a, n=n, text=BIG)
    reactor.run(a.packets.finish)
    assert not a.ended.is_set()
    reactor.run(b.packets.start)
    assert a.ended.wait(60) and b.ended.wait(60)
    assert [packet["n"] for packet in b.came] == list(range(50))


def test_ending_at_once_does_not_wait(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    a, _ = (End(sock, reactor) for sock in pair)
    for n in range(50):
        write(a, n=n, text=BIG)
    reactor.run(a.packets.end)
    assert a.ended.is_set()
    write(a, n=50)
    reactor.run(a.packets.end)


def test_descriptors_travel_and_do_not_outlive_an_exec(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    a, b = (End(sock, reactor) for sock in pair)
    read_end, write_end = os.pipe()
    a.packets.write(b'{"n":0}', [write_end])
    os.close(write_end)
    reactor.run(b.packets.start)
    reactor.run(b.packets.read)
    (received,) = b.fds
    assert not os.get_inheritable(received)
    os.write(received, b"hello")
    os.close(received)
    assert os.read(read_end, 10) == b"hello"
    os.close(read_end)


def test_writing_to_one_who_is_gone_is_no_error(
    reactor: Reactor,
    pair: tuple[socket.socket, socket.socket],
    errors: list[BaseException],
) -> None:
    raw, sock = pair
    end = End(sock, reactor)
    raw.close()
    write(end, n=0)
    reactor.run(end.packets.start)
    assert end.ended.wait(60)
    assert errors == []
