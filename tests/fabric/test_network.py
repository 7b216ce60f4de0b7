"""The transport between hosts: broken and slow connections, rubbish on the port, places."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.intruders import Relay, rubbish
from support.two_hosts import CREDENTIALS, A, B, Pair, talk
from unisono.errors import UserError
from unisono.fabric import (
    COORDINATOR,
    Address,
    CoordinatorFound,
    Gone,
    Member,
    TensorVector,
    TimedOut,
    learner,
)
from unisono.fabric.local.host import Host, LocalNode
from unisono.fabric.network.endpoints import (
    SocketAddress,
    address_of,
    local_path,
    route_to,
    tcp_place,
)
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.fabric.network.tcp_socket import TcpSocket


def test_a_broken_connection_loses_and_repeats_nothing(pair: Callable[..., Pair]) -> None:
    passed = [0]

    def cut(number: int, data: bytes) -> bytes | None:
        passed[0] += len(data)
        if passed[0] > 400_000:
            passed[0] = 0
            return None
        return data

    made = pair(cut)
    talk(made, 60)
    assert made.relay.connections > 8


def test_what_is_changed_or_repeated_on_the_way_is_found(pair: Callable[..., Pair]) -> None:
    chance = random.Random(1)

    def meddle(number: int, data: bytes) -> bytes:
        kind = chance.randrange(12)
        if kind == 0:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data + data if kind == 1 else data

    made = pair(meddle)
    talk(made, 40)
    assert made.relay.connections > 3


def test_a_slow_link_does_not_wake_the_receiver_for_each_packet(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {"B": 0}
    receive_into = TcpSocket.receive_into

    def counted(self: TcpSocket, room: memoryview) -> int | None:
        reads["B"] += self.sock.getsockname()[1] == place.port
        return receive_into(self, room)

    def packet(number: int, data: bytes) -> bytes:
        time.sleep(0.0002)
        return data

    made = pair(packet, piece=1448)
    place = tcp_place(made.b.endpoint)
    monkeypatch.setattr(TcpSocket, "receive_into", counted)
    vector = torch.randn(400_000)
    made.a.spawn("tell", lambda: made.a.send(B, "x", {}, TensorVector(vector)))
    message = made.b.receive("x", timeout=60)
    assert isinstance(message.vector, TensorVector)
    assert torch.equal(message.vector.tensor, vector)
    assert reads["B"] < 1_600_000 / 1448 / 4  # TLS hands a record at a time over


def harass(made: Pair, count: int) -> None:
    """Rubbish at both ports while two members talk; memory and descriptors stay bounded."""
    places = [tcp_place(node.endpoint) for node in (made.a, made.b)]
    talk(made, 10)
    before, files = memory(), len(os.listdir("/proc/self/fd"))
    threads = [
        threading.Thread(target=rubbish, args=(place, count // 2, n))
        for n, place in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    n = 0
    while any(thread.is_alive() for thread in threads):
        talk(made, 3)
        n += 1
    assert n > 0
    assert memory() - before < 64e6
    deadline = time.monotonic() + 100
    while len(os.listdir("/proc/self/fd")) > files + 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def memory() -> float:
    """Bytes that this process occupies now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_rubbish_on_the_port_harms_nothing(pair: Callable[..., Pair]) -> None:
    harass(pair(), 400)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ten_thousand_connections_of_rubbish_harm_nothing(pair: Callable[..., Pair]) -> None:
    harass(pair(), 10_000)


def test_ipv6(pair: Callable[..., Pair]) -> None:
    try:
        hosts = [Host(network=NetworkSettings(CREDENTIALS, "::1")) for _ in range(2)]
    except (UserError, OSError):
        pytest.skip("this machine has no IPv6")
    a, b = (host.node(learner(n)) for n, host in enumerate(hosts))
    assert b.endpoint.startswith("tcp:[::1]:")
    a.meet(Member(B, b.endpoint))
    a.send(B, "x", {"n": 1}, TensorVector(torch.ones(10)))
    assert b.receive("x", timeout=60).body == {"n": 1}
    for host in hosts:
        host.close()


def listening(pid: int) -> list[str]:
    """The TCP ports on which a process listens, as the kernel knows them."""
    mine = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for link in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = link.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.append(fields[1])
    return found


def test_on_one_host_nothing_listens_on_the_network(tmp_path: Path) -> None:
    before = listening(os.getpid())
    host = Host(tmp_path)
    host.node(A)
    assert listening(os.getpid()) == before
    remote = Host(network=NetworkSettings(CREDENTIALS, "127.0.0.1"))
    assert len(listening(os.getpid())) == len(before) + 1
    for each in (host, remote):
        each.close()


def test_processes_of_one_machine_use_their_unix_sockets(tmp_path: Path) -> None:
    hosts = [Host(tmp_path, network=NetworkSettings(CREDENTIALS, "127.0.0.1")) for _ in range(2)]
    a, b = (host.node(learner(n)) for n, host in enumerate(hosts))
    assert local_path(b.endpoint) is not None
    elsewhere = b.endpoint.replace("unix@", "unix@another-machine")
    assert local_path(elsewhere) is None and tcp_place(elsewhere) == tcp_place(b.endpoint)
    for endpoint, number in ((b.endpoint, 5), (elsewhere, 6)):
        sender: LocalNode = hosts[0].node(Address("tester", number))
        sender.meet(Member(B, endpoint))
        sender.send(B, "x", {}, TensorVector(torch.ones(4)))
        b.receive("x", timeout=60).release()
        links = [type(link).__name__ for link in sender._links.values()]
        assert links == ["UnixLink" if number == 5 else "TcpLink"]
    for host in hosts:
        host.close()
    assert a.address == A


def test_a_peer_whose_place_is_empty_loses_what_is_sent_to_it(pair: Callable[..., Pair]) -> None:
    made = pair()
    made.a.send(B, "x", {"n": 0})
    made.b.receive("x", timeout=60)
    made.hosts[1].close()
    made.relay.close()
    for _ in range(3):
        made.a.send(B, "x", {})
    with pytest.raises(TimedOut):
        made.a.receive("z", timeout=0.1)
    assert not isinstance(made.a._reason, Gone)


def test_a_coordinator_behind_a_cut_is_gone_until_it_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (("handshake.SHAKE_S", 0.3), ("tcp_listener.GIVE_UP_S", 0.5)):
        monkeypatch.setattr(f"unisono.fabric.network.{name}", seconds)
    broken = threading.Event()
    there, here = (Host(network=NetworkSettings(CREDENTIALS, "127.0.0.1")) for _ in range(2))
    coordinator = there.node(COORDINATOR)
    relay = Relay(tcp_place(there.endpoint), lambda number, data: None if broken.is_set() else data)
    node = here.node(A, str(relay.place))
    node.port("control", members=True)
    assert node.receive("control", timeout=60).body == CoordinatorFound()
    node.send(COORDINATOR, "x", {"n": 0})
    assert coordinator.receive("x", timeout=60).body == {"n": 0}
    broken.set()
    with pytest.raises(Gone):
        while True:  # the first ends the connection, the others wait for credit
            node.send(COORDINATOR, "x", {"n": 1})
    broken.clear()
    assert node.receive("control", timeout=60).body == CoordinatorFound()
    node.send(COORDINATOR, "y", {"n": 2})
    assert coordinator.receive("y", timeout=60).body == {"n": 2}
    for host in (here, there):
        host.close()
    relay.close()


@pytest.mark.parametrize("text", ["tcp:1.2.3.4", "udp:1.2.3.4:5", "tcp:[::1]:x", ""])
def test_a_place_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match="is not tcp:ADDRESS:PORT"):
        SocketAddress.parse(text)


@pytest.mark.parametrize("place", [SocketAddress("10.1.2.3", 4), SocketAddress("fd00::7", 4711)])
def test_a_place_is_read_back(place: SocketAddress) -> None:
    assert SocketAddress.parse(str(place)) == place


def test_the_interface_is_found_by_the_route_or_its_name() -> None:
    assert route_to(SocketAddress("127.0.0.1", 9)) == "127.0.0.1"
    assert address_of("lo") == "127.0.0.1"
    assert address_of("fd00::7") == "fd00::7"
    with pytest.raises(UserError, match=r"'none0' is no interface .* there are .*lo"):
        address_of("none0")
