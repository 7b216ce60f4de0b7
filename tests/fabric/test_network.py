"""The network's transport among enemies: resets, changes, replays, rubbish, wrong tokens."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from unisono.fabric.network.tls import TlsSocket

from support.intruders import Relay, rubbish
from unisono.errors import UserError
from unisono.fabric import (
    COORDINATOR,
    Address,
    Gone,
    Member,
    TensorVector,
    TimedOut,
    learner,
)
from unisono.fabric.local.host import Host, LocalNode
from unisono.fabric.network.auth import NONCE, PROOF, Forged, Proofs, Seal, make_token
from unisono.fabric.network.endpoints import (
    SocketAddress,
    address_of,
    local_path,
    route_to,
    tcp_place,
)
from unisono.fabric.network.tcp_listener import NetworkSettings, token_of
from unisono.fabric.network.tcp_socket import TcpSocket

TOKEN = token_of(make_token())
A, B = learner(0), learner(1)
BOTH = pytest.mark.parametrize(
    "encrypt",
    [pytest.param(False, id="plain"), pytest.param(True, marks=pytest.mark.long, id="encrypted")],
)
Meddle = Callable[[int, bytes], "bytes | None"]


class Pair:
    """Two hosts, and a relay on the way from A to B."""

    def __init__(self, meddle: Meddle, encrypt: bool, piece: int) -> None:
        network = NetworkSettings(TOKEN, "127.0.0.1", encrypt=encrypt)
        self.hosts = [Host(network=network) for _ in range(2)]
        self.a, self.b = (host.node(learner(n)) for n, host in enumerate(self.hosts))
        self.relay = Relay(tcp_place(self.b.endpoint), meddle, piece)
        self.a.meet(Member(B, str(self.relay.place)))
        self.b.meet(Member(A, self.a.endpoint))

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self.relay.close()


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def make(
        meddle: Meddle = lambda number, data: data, encrypt: bool = False, piece: int = 65536
    ) -> Pair:
        pairs.append(Pair(meddle, encrypt, piece))
        return pairs[-1]

    yield make
    for made in pairs:
        made.close()


def talk(pair: Pair, count: int) -> None:
    """A sends bodies and vectors to two ports, B answers; each must come once, in its order."""

    def ask() -> None:
        for n in range(count):
            vector = TensorVector(torch.full((n * 997 % 60_000,), float(n)))
            pair.a.send(B, "x", {"n": n}, vector if n % 3 else None)
            pair.a.send(B, "y", {"n": n, "text": "a" * (n * 89 % 5000)})

    pair.a.spawn("ask", ask)
    for n in range(count):
        message = pair.b.receive("x", timeout=20)
        assert message.body["n"] == n
        if n % 3:
            assert isinstance(message.vector, TensorVector)
            assert torch.equal(message.vector.tensor, torch.full((n * 997 % 60_000,), float(n)))
        message.release()
        assert pair.b.receive("y", timeout=20).body["n"] == n
        pair.b.send(A, "z", {"n": n})
        assert pair.a.receive("z", timeout=20).body["n"] == n
    for port in ("x", "y"):
        with pytest.raises(TimedOut):
            pair.b.receive(port, timeout=0.0)


@BOTH
def test_a_broken_connection_loses_and_repeats_nothing(
    pair: Callable[..., Pair], encrypt: bool
) -> None:
    passed = [0]

    def cut(number: int, data: bytes) -> bytes | None:
        passed[0] += len(data)
        if passed[0] > 400_000:
            passed[0] = 0
            return None
        return data

    made = pair(cut, encrypt)
    talk(made, 60)
    assert made.relay.connections > 8


@BOTH
def test_what_is_changed_or_repeated_on_the_way_is_found(
    pair: Callable[..., Pair], encrypt: bool
) -> None:
    chance = random.Random(1)

    def meddle(number: int, data: bytes) -> bytes:
        kind = chance.randrange(12)
        if kind == 0:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data + data if kind == 1 else data

    made = pair(meddle, encrypt)
    talk(made, 40)
    assert made.relay.connections > 3


@BOTH
def test_a_slow_link_does_not_wake_the_receiver_for_each_packet(
    pair: Callable[..., Pair], encrypt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {"B": 0}
    kind = TlsSocket if encrypt else TcpSocket
    receive_into = kind.receive_into

    def counted(self: TcpSocket, room: memoryview) -> int | None:
        reads["B"] += self.sock.getsockname()[1] == place.port
        return receive_into(self, room)

    def packet(number: int, data: bytes) -> bytes:
        time.sleep(0.0002)
        return data

    made = pair(packet, encrypt, piece=1448)
    place = tcp_place(made.b.endpoint)
    monkeypatch.setattr(kind, "receive_into", counted)
    vector = torch.randn(400_000)
    made.a.spawn("tell", lambda: made.a.send(B, "x", {}, TensorVector(vector)))
    message = made.b.receive("x", timeout=20)
    assert isinstance(message.vector, TensorVector)
    assert torch.equal(message.vector.tensor, vector)
    assert reads["B"] < 1_600_000 / 1448 / 4  # TLS hands a record at a time over


def test_a_recorded_connection_is_of_no_use_later(pair: Callable[..., Pair]) -> None:
    recorded: list[bytes] = []

    def record(number: int, data: bytes) -> bytes:
        recorded.append(data)
        return data

    made = pair(record)
    made.a.send(B, "x", {"n": 1}, TensorVector(torch.ones(1000)))
    made.b.receive("x", timeout=5).release()
    with socket.create_connection(tuple(tcp_place(made.b.endpoint)), timeout=5) as sock:
        sock.sendall(b"".join(recorded))
        assert len(drain(sock)) == len(b"unisono1") + NONCE
    with pytest.raises(TimedOut):
        made.b.receive("x", timeout=0.1)
    made.a.send(B, "x", {"n": 2})
    assert made.b.receive("x", timeout=5).body == {"n": 2}


def drain(sock: socket.socket) -> bytes:
    """All that the other side says until it ends the connection."""
    said = b""
    try:
        while data := sock.recv(65536):
            said += data
    except ConnectionResetError:
        pass
    return said


def test_who_has_another_token_is_not_heard(pair: Callable[..., Pair]) -> None:
    made = pair()
    stranger = Host(network=NetworkSettings(token_of(make_token()), "127.0.0.1"))
    node = stranger.node(learner(7))
    node.meet(Member(B, made.b.endpoint))
    node.spawn("try", lambda: node.send(B, "x", {"n": 1}))
    made.b.meet(Member(learner(7), stranger.endpoint))
    made.b.spawn("try", lambda: made.b.send(learner(7), "x", {"n": 1}))
    for listener in (made.b, node):
        with pytest.raises(TimedOut):
            listener.receive("x", timeout=0.5)
    talk(made, 5)
    stranger.close()


def member(place: SocketAddress) -> tuple[socket.socket, Seal]:
    """A connection of one who knows the token, before its greeting."""
    sock = socket.create_connection(tuple(place), timeout=5)
    question = receive_exactly(sock, 8 + NONCE)
    proofs = Proofs(TOKEN, question[8:], bytes(NONCE), b"")
    sock.sendall(bytes(NONCE) + proofs.proof("call"))
    proofs.check("answer", receive_exactly(sock, PROOF))
    return sock, proofs.seal("calling", private=False)


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        data = sock.recv(count - len(got))
        assert data
        got += data
    return got


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<IQ", 2**32 - 1, 0),
        struct.pack("<IQ", 2, 0) + b"{}" + bytes(16),
        struct.pack("<IQ", 5, 2**60)[:7],
    ],
    ids=["oversize", "wrong tag", "truncated"],
)
def test_a_bad_frame_of_a_member_ends_its_connection_only(
    pair: Callable[..., Pair], frame: bytes
) -> None:
    made = pair()
    sock, _ = member(tcp_place(made.b.endpoint))
    sock.sendall(frame)
    sock.shutdown(socket.SHUT_WR)
    assert drain(sock) == b""
    sock.close()
    talk(made, 5)


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
    deadline = time.monotonic() + 20
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


def test_what_is_encrypted_cannot_be_read_on_the_way(pair: Callable[..., Pair]) -> None:
    for encrypt in (False, True):
        passed: list[bytes] = []

        def note(number: int, data: bytes, passed: list[bytes] = passed) -> bytes:
            passed.append(data)
            return data

        made = pair(note, encrypt)
        made.a.send(B, "x", {"text": "a secret"}, TensorVector(torch.full((1000,), 1.5)))
        message = made.b.receive("x", timeout=10)
        assert isinstance(message.vector, TensorVector)
        assert message.body == {"text": "a secret"} and message.vector.tensor.unique() == 1.5
        seen = b"".join(passed)
        vector = struct.pack("<f", 1.5) * 100
        assert [secret in seen for secret in (b"a secret", vector)] == [not encrypt] * 2


def test_who_says_nothing_is_turned_away_in_time(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.fabric.network.tcp_listener.SHAKE_S", 0.2)
    made = pair()
    with socket.create_connection(tuple(tcp_place(made.b.endpoint)), timeout=5) as sock:
        assert len(drain(sock)) == 8 + NONCE
    talk(made, 3)


def test_ipv6(pair: Callable[..., Pair]) -> None:
    try:
        hosts = [Host(network=NetworkSettings(TOKEN, "::1")) for _ in range(2)]
    except (UserError, OSError):
        pytest.skip("this machine has no IPv6")
    a, b = (host.node(learner(n)) for n, host in enumerate(hosts))
    assert b.endpoint.startswith("tcp:[::1]:")
    a.meet(Member(B, b.endpoint))
    a.send(B, "x", {"n": 1}, TensorVector(torch.ones(10)))
    assert b.receive("x", timeout=5).body == {"n": 1}
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
    remote = Host(network=NetworkSettings(TOKEN, "127.0.0.1"))
    assert len(listening(os.getpid())) == len(before) + 1
    for each in (host, remote):
        each.close()


def test_processes_of_one_machine_use_their_unix_sockets(tmp_path: Path) -> None:
    hosts = [Host(tmp_path, network=NetworkSettings(TOKEN, "127.0.0.1")) for _ in range(2)]
    a, b = (host.node(learner(n)) for n, host in enumerate(hosts))
    assert local_path(b.endpoint) is not None
    elsewhere = b.endpoint.replace("unix@", "unix@another-machine")
    assert local_path(elsewhere) is None and tcp_place(elsewhere) == tcp_place(b.endpoint)
    for endpoint, number in ((b.endpoint, 5), (elsewhere, 6)):
        sender: LocalNode = hosts[0].node(Address("tester", number))
        sender.meet(Member(B, endpoint))
        sender.send(B, "x", {}, TensorVector(torch.ones(4)))
        b.receive("x", timeout=5).release()
        links = [type(link).__name__ for link in sender._links.values()]
        assert links == ["UnixLink" if number == 5 else "TcpLink"]
    for host in hosts:
        host.close()
    assert a.address == A


def test_a_peer_whose_place_is_empty_loses_what_is_sent_to_it(pair: Callable[..., Pair]) -> None:
    made = pair()
    made.a.send(B, "x", {"n": 0})
    made.b.receive("x", timeout=5)
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
    for name, seconds in (("handshake.SHAKE_S", 0.3), ("gate.GIVE_UP_S", 0.5)):
        monkeypatch.setattr(f"unisono.fabric.{name}", seconds)
    broken = threading.Event()
    there, here = (Host(network=NetworkSettings(TOKEN, "127.0.0.1")) for _ in range(2))
    coordinator = there.node(COORDINATOR)
    relay = Relay(tcp_place(there.endpoint), lambda number, data: None if broken.is_set() else data)
    node = here.node(A, str(relay.place))
    node.port("control", members=True)
    assert node.receive("control", timeout=10).body == {"kind": "coordinator"}
    node.send(COORDINATOR, "x", {"n": 0})
    assert coordinator.receive("x", timeout=5).body == {"n": 0}
    broken.set()
    with pytest.raises(Gone):
        while True:  # the first ends the connection, the others wait for credit
            node.send(COORDINATOR, "x", {"n": 1})
    broken.clear()
    assert node.receive("control", timeout=10).body == {"kind": "coordinator"}
    node.send(COORDINATOR, "y", {"n": 2})
    assert coordinator.receive("y", timeout=5).body == {"n": 2}
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


def test_a_token_that_is_none_is_refused_in_one_line() -> None:
    for text in ("", "abc", "xyz" * 100):
        with pytest.raises(UserError, match="64 hexadecimal digits"):
            token_of(text)


def test_tags_are_for_one_place_in_one_direction_of_one_connection() -> None:
    proofs = Proofs(TOKEN, b"s" * NONCE, b"c" * NONCE, b"")
    others = [
        Proofs(TOKEN, b"s" * NONCE, b"d" * NONCE, b""),
        Proofs(TOKEN, b"s" * NONCE, b"c" * NONCE, b"channel"),
        Proofs(bytes(32), b"s" * NONCE, b"c" * NONCE, b""),
    ]
    tags = [
        proofs.seal("calling", private=False).tag(b"piece"),
        proofs.seal("listening", private=False).tag(b"piece"),
    ]
    tags += [other.seal("calling", private=False).tag(b"piece") for other in others]
    seal = proofs.seal("calling", private=False)
    tags += [seal.tag(b"another"), seal.tag(b"piece")]
    assert len(set(tags)) == len(tags)
    with pytest.raises(Forged):
        proofs.check("answer", proofs.proof("call"))
