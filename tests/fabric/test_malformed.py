"""Members that do not keep to the protocol: their session ends with one line, nobody else's does.

A member is believed, but it may have a bug or another version: nothing that it sends raises in
another process, hangs it, or makes it allocate more than the run can need.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from support.intruders import client_hello
from support.two_hosts import CREDENTIALS, A, B, Pair, drain, frame, greeting, member, talk
from unisono.fabric import Address, ConnectionLost, Member, TensorVector, TimedOut, learner
from unisono.fabric.api import CREDIT
from unisono.fabric.local.host import Host, LocalNode
from unisono.fabric.network.auth import MEMBER, tls_contexts
from unisono.fabric.network.buffer_pool import BufferPool
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.frame_stream import HEAD_LIMIT, LENGTHS

LIMIT = 1 << 20
NESTED = b'{"n":0,"p":"q","b":' + b"[" * 60_000 + b"]" * 60_000 + b"}"


@pytest.fixture
def made(pair: Callable[..., Pair]) -> Pair:
    """Two hosts that accept vectors of 1 MiB."""
    made = pair()
    for node in (made.a, made.b):
        node.limit_vectors(LIMIT)
    return made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all pieces of memory that vectors are received into."""
    sizes: list[int] = []
    take = BufferPool.take

    def noted(self: BufferPool, nbytes: int) -> torch.Tensor:
        sizes.append(nbytes)
        return take(self, nbytes)

    monkeypatch.setattr(BufferPool, "take", noted)
    return sizes


def data(**changes: Any) -> dict[str, Any]:
    """A message of the tester's."""
    return {"n": 0, "p": "q", "b": {}, **changes}


def check_unharmed(node: LocalNode, caplog: pytest.LogCaptureFixture, lines: int) -> None:
    """So many lines were logged, none with a traceback, and the node was not cancelled."""
    assert len(caplog.records) == lines, caplog.text
    assert all(r.levelno == logging.WARNING and r.exc_info is None for r in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert node._reason is None


GREETINGS: dict[str, bytes] = {
    "no JSON": frame(b"GET / HTTP/1.1"),
    "not UTF-8": frame(b'{"from":"\xff"}'),
    "a list": frame([1, 2]),
    "no sender": frame({k: v for k, v in greeting().items() if k != "from"}),
    "a number as sender": frame(greeting(**{"from": 7})),
    "a sender that is no address": frame(greeting(**{"from": "you"})),
    "a place that is a name": frame(greeting(at="tcp:example.org:80")),
    "a port that there is not": frame(greeting(at="tcp:127.0.0.1:99999")),
    "something more": frame(greeting(more=1)),
    "a message first": frame(data()),
    "a payload": frame(greeting(), b"1234"),
    "a head of 4 GiB": LENGTHS.pack(2**32 - 1, 0),
    "a head that is too long": LENGTHS.pack(HEAD_LIMIT + 1, 0),
}


@pytest.mark.parametrize("sent", GREETINGS.values(), ids=GREETINGS)
def test_a_malformed_greeting_ends_its_connection_only(
    made: Pair, sent: bytes, caplog: pytest.LogCaptureFixture, taken: list[int]
) -> None:
    with member(made.place) as sock:
        sock.sendall(sent)
        assert drain(sock) == b""
    assert taken == []
    check_unharmed(made.b, caplog, 1)
    talk(made, 3)


FRAMES: dict[str, bytes] = {
    "a payload of 64 GiB": frame(data(v=[2**34, "float32"]), size=2**36),
    "a payload of 2 ** 64 - 1 bytes": frame(data(v=[1, "float32"]), size=2**64 - 1),
    "a payload just too long": frame(data(v=[LIMIT // 4 + 1, "float32"]), size=LIMIT + 4),
    "no port": frame({"n": 0, "b": {}}),
    "no body": frame({"n": 0, "p": "q"}),
    "a body that is a list": frame(data(b=[1])),
    "a number out of order": frame(data(n=1)),
    "a number below zero": frame(data(n=-1)),
    "a vector without a payload": frame(data(v=[4, "float32"])),
    "a payload without a vector": frame(data(), bytes(8)),
    "a vector longer than its payload": frame(data(v=[3, "float32"]), bytes(8)),
    "a vector shorter than its payload": frame(data(v=[1, "float32"]), bytes(8)),
    "a vector of something else": frame(data(v=[8, "load"]), bytes(8)),
    "a vector of less than nothing": frame(data(v=[-2, "float32"]), bytes(8)),
    "another greeting": frame(greeting()),
    "a deep nest": frame(NESTED),
    "more messages than there is credit": b"".join(frame(data(n=n)) for n in range(CREDIT + 1)),
}


@pytest.mark.parametrize("sent", FRAMES.values(), ids=FRAMES)
def test_a_malformed_frame_ends_its_session_only(
    made: Pair, sent: bytes, caplog: pytest.LogCaptureFixture, taken: list[int]
) -> None:
    made.b.port("deaths", lost=True)
    with member(made.place) as sock:
        sock.sendall(frame(greeting()) + sent)
        drain(sock)
    assert max(taken, default=0) <= LIMIT
    check_unharmed(made.b, caplog, 1)
    assert "session with tester 77 ended, a frame is malformed: " in caplog.text
    told = made.b.receive("deaths", timeout=60).body
    assert told == ConnectionLost(Address.parse("tester-77.0#0"))
    with member(made.place) as sock:  # the session is over
        sock.sendall(frame(greeting(new=False)))
        assert b'"no":1' in drain(sock)
    talk(made, 3)


def test_a_vector_as_long_as_the_limit_is_accepted(made: Pair) -> None:
    made.a.send(B, "x", {}, TensorVector(torch.ones(LIMIT // 4)))
    made.b.receive("x", timeout=60).release()
    made.b.limit_vectors(0)
    made.a.send(B, "x", {})
    assert made.b.receive("x", timeout=60).vector is None


ANSWERS: dict[str, bytes] = {
    "no JSON": frame(b"rubbish"),
    "nothing": frame({}),
    "messages that were not sent": frame({"r": 5, "c": {}}),
    "credit for a port without messages": frame({"r": 0, "c": {"nowhere": 1}}),
    "credit for more messages": frame({"r": 1, "c": {"x": 2}}),
    "a payload": frame({"r": 0, "c": {}}, bytes(8)),
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
def test_a_malformed_answer_ends_the_session_only(
    made: Pair, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    heard = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            accepting, _ = tls_contexts(CREDENTIALS)
            with accepting.wrap_socket(sock, server_side=True) as tls:
                tls.sendall(frame({"r": 0, "c": {}}))
                while b'"p":"x"' not in tls.recv(65536):
                    pass
                tls.sendall(said)
                drain(tls)
            heard.set()

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        made.a.meet(Member(learner(7), f"tcp:127.0.0.1:{port}"))
        made.a.send(learner(7), "x", {})
        assert heard.wait(60)
    talk(made, 3)
    check_unharmed(made.a, caplog, 1)
    assert "session with learner 7 ended" in caplog.text


def reset(sock: socket.socket) -> None:
    """Ends a connection in the roughest way."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("count", [0, 5, 100, 10_000])
def test_a_reset_in_the_middle_of_a_handshake_is_no_error(
    made: Pair, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    held, go = threading.Event(), threading.Event()
    assert made.hosts[1].reactor is not None

    def hold() -> None:
        held.set()
        go.wait(60)

    for late in (False, True):
        if late:  # the connection has ended before it is accepted
            made.hosts[1].reactor.call(hold)
            assert held.wait(60)
        sock = socket.create_connection(tuple(made.place), timeout=60)
        sock.sendall(client_hello()[:count])
        if not late and count > 1000:
            sock.recv(1)  # in the middle of the answer
        reset(sock)
        go.set()
    talk(made, 3)
    check_unharmed(made.b, caplog, 0)


# Random changes.


def conversation(chance: random.Random) -> list[bytes]:
    """What a member sends in a new session: frames of all kinds."""
    vector = torch.arange(300, dtype=torch.float32).numpy().tobytes()
    return [
        frame(greeting(session=chance.randbytes(8).hex())),
        frame(data(b={"kind": "hello", "list": [1, 2, [3.5, None, True]]})),
        frame(data(n=1, v=[300, "float32"]), vector),
        frame(data(n=2, v=[0, "bfloat16"])),
        frame(data(n=3, p="r", b={"text": "a" * 500})),
        frame({"bye": 1}),
    ]


def mutate(chance: random.Random, frames: list[bytes]) -> bytes:
    """One change: of a byte, a length, an order, an end."""
    frames = list(frames)
    place = chance.randrange(len(frames))
    kind = chance.choice(["flip", "flip", "cut", "length", "payload", "repeat", "drop", "noise"])
    if kind == "length":
        wrong = chance.choice([0, 1, 2**31, 2**32 - 1, chance.randrange(HEAD_LIMIT)])
        frames[place] = struct.pack("<I", wrong) + frames[place][4:]
    elif kind == "payload":
        wrong = chance.choice([1, 2**36, 2**63, 2**64 - 1, chance.randrange(2 * LIMIT)])
        frames[place] = frames[place][:4] + struct.pack("<Q", wrong) + frames[place][12:]
    elif kind == "repeat":
        frames.insert(place, frames[place])
    elif kind == "drop":
        del frames[place]
    whole = bytearray(b"".join(frames))
    at = chance.randrange(len(whole))
    if kind == "flip":
        for at in chance.sample(range(len(whole)), chance.choice([1, 1, 5])):
            whole[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del whole[at:]
    elif kind == "noise":
        whole[at:at] = chance.randbytes(chance.randrange(1, 2000))
    return bytes(whole)


def until_it_ends(sock: socket.socket) -> None:
    """Ends this side, and waits for the other; that takes no longer than the socket's timeout."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
    with suppress(ConnectionError, ssl.SSLError):
        while sock.recv(65536):
            pass


def send_as_member(place: SocketAddress, sent: bytes) -> None:
    """After the handshake: as a member."""
    with suppress(ConnectionError, ssl.SSLError), member(place) as sock:
        sock.sendall(sent)
        until_it_ends(sock)


def send_as_stranger(place: SocketAddress, sent: bytes) -> None:
    """Before the handshake."""
    with suppress(ConnectionError), socket.create_connection(tuple(place), timeout=60) as sock:
        sock.sendall(sent)
        until_it_ends(sock)


def send_changed(place: SocketAddress, chance: random.Random) -> None:
    """A member whose hello, certificate or messages are changed on their way."""
    _, calling = tls_contexts(CREDENTIALS)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = calling.wrap_bio(incoming, outgoing, server_hostname=MEMBER)
    unchanged = chance.randrange(3)
    with suppress(ConnectionError), socket.create_connection(tuple(place), timeout=60) as sock:
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        if unchanged > 0:
            sock.sendall(outgoing.read())
            while not outgoing.pending:
                incoming.write(sock.recv(65536))
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
        if unchanged > 1:
            sock.sendall(outgoing.read())
            tls.write(b"".join(conversation(chance)))
        raw = outgoing.read()
        sock.sendall(mutate(chance, [raw[: len(raw) // 2], raw[len(raw) // 2 :]]))
        until_it_ends(sock)


@pytest.mark.timeout(120)
def test_three_hundred_mutations_harm_nobody(
    made: Pair, caplog: pytest.LogCaptureFixture, taken: list[int]
) -> None:
    chance = random.Random(5)
    heard: list[int] = []

    def listen() -> None:
        while True:
            made.b.receive("q").release()
            heard.append(1)

    made.b.spawn("listen", listen)
    hello = client_hello()
    for number in range(300):
        if number % 3 == 0:
            send_as_stranger(made.place, mutate(chance, [hello[:5], hello[5:]]))
        elif number % 3 == 1:
            send_changed(made.place, chance)
        else:
            send_as_member(made.place, mutate(chance, conversation(chance)))
        if number % 50 == 49:
            talk(made, 2)
    assert max(taken) <= LIMIT
    assert heard, "what is not changed before it arrives is heard"
    assert sum("malformed" in record.getMessage() for record in caplog.records) > 30
    check_unharmed(made.b, caplog, len(caplog.records))
    assert made.a._reason is None
    talk(made, 5)


# On one host.


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def local_member(host: Host) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(100)
    sock.connect(host.endpoint.removeprefix("unix:"))
    return sock


LOCAL = {"from": "tester-77.0#0", "to": str(A)}
PACKETS: dict[str, list[Any]] = {
    "no JSON": [b"this is no greeting"],
    "no sender": [{"to": str(A)}],
    "a sender that is no address": [{**LOCAL, "from": "you"}],
    "no port": [LOCAL, {"b": {}}],
    "a body that is a list": [LOCAL, {"p": "q", "b": []}],
    "a slot that was never sent": [LOCAL, {"p": "q", "b": {}, "v": [1, 5, "float32"]}],
    "a deep nest": [LOCAL, NESTED],
    "too many messages": [LOCAL, *[{"p": "q", "b": {}}] * (CREDIT + 1)],
}


@pytest.mark.parametrize("sent", PACKETS.values(), ids=PACKETS)
def test_a_malformed_packet_on_one_host_ends_its_session_only(
    host: Host, sent: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    node = host.node(A)
    with local_member(host) as sock:
        for packet in sent:
            sock.send(packet if isinstance(packet, bytes) else json.dumps(packet).encode())
        drain(sock)
    check_unharmed(node, caplog, 1)
    with pytest.raises(TimedOut):
        node.receive("never", timeout=0.0)


def test_a_vector_on_one_host_is_bounded_too(
    tmp_path: Path, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    node, other = host.node(A), Host(tmp_path)
    node.port("deaths", lost=True)
    node.limit_vectors(LIMIT)
    sender = other.node(B)
    sender.meet(Member(A, host.endpoint))
    sender.send(A, "x", {}, TensorVector.zeros(LIMIT // 4))
    node.receive("x", timeout=60).release()
    sender.send(A, "x", {}, TensorVector.zeros(LIMIT // 4 + 1))
    assert node.receive("deaths", timeout=60).body == ConnectionLost(B)
    check_unharmed(node, caplog, 1)
    other.close()
