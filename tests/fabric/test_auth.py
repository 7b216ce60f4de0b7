"""Who is let in: strangers, members of other runs, recordings, relays that read or change bytes."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import torch

from support.intruders import client_hello
from support.two_hosts import CREDENTIALS, B, Pair, drain, frame, greeting, member, talk
from unisono.errors import UserError
from unisono.fabric import Cancelled, Member, TensorVector, TimedOut, learner
from unisono.fabric.local.host import Host
from unisono.fabric.network.auth import MEMBER, PROTOCOL, make_credentials, tls_contexts
from unisono.fabric.network.endpoints import SocketAddress
from unisono.fabric.network.tcp_listener import NetworkSettings


def connect(place: SocketAddress, context: ssl.SSLContext) -> bytes:
    """Greets B; the first thing that it answers."""
    with socket.create_connection(tuple(place), timeout=60) as sock:
        try:
            with context.wrap_socket(sock, server_hostname=MEMBER) as tls:
                tls.sendall(frame(greeting()))
                return tls.recv(1000)
        except (ssl.SSLError, ConnectionError):
            return b""


def trusting(context: ssl.SSLContext) -> ssl.SSLContext:
    """One that believes everybody."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL])
    return context


def test_a_member_by_hand_is_answered(pair: Callable[..., Pair]) -> None:
    """Or the tests below would pass for any reason."""
    with member(pair().place) as sock:
        sock.sendall(frame(greeting()))
        assert b'"r":0' in sock.recv(1000)


def test_who_has_no_certificate_is_refused(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    made = pair()
    assert connect(made.place, trusting(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))) == b""
    talk(made, 3)
    assert "did not return a certificate" in caplog.text


def test_who_has_no_certificate_of_this_run_is_not_heard(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    made = pair()
    stranger = Host(network=NetworkSettings(make_credentials(), "127.0.0.1"))
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
    assert "it does not belong to this run" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_older_versions_of_tls_are_refused(pair: Callable[..., Pair], tmp_path: Path) -> None:
    made = pair()
    secret = tmp_path / "secret.pem"
    secret.write_text(CREDENTIALS)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = trusting(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        context.load_cert_chain(secret)
        context.maximum_version = version
        answer = connect(made.place, context)
        assert bool(answer) == (version is ssl.TLSVersion.TLSv1_3)


def test_another_version_of_the_protocol_is_refused(
    pair: Callable[..., Pair], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.pem"
    secret.write_text(CREDENTIALS)
    context = trusting(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.load_cert_chain(secret)
    context.set_alpn_protocols(["unisono/1"])
    assert connect(pair().place, context) == b""


def test_a_recorded_connection_is_of_no_use_later(pair: Callable[..., Pair]) -> None:
    recorded: list[bytes] = []

    def record(number: int, data: bytes) -> bytes:
        recorded.append(data)
        return data

    made = pair(record)
    made.a.send(B, "x", {"n": 1}, TensorVector(torch.ones(1000)))
    made.b.receive("x", timeout=60).release()
    with socket.create_connection(tuple(made.place), timeout=60) as sock:
        sock.sendall(b"".join(recorded))
        drain(sock)  # it ends
    with pytest.raises(TimedOut):
        made.b.receive("x", timeout=0.1)
    made.a.send(B, "x", {"n": 2})
    assert made.b.receive("x", timeout=60).body == {"n": 2}


def test_what_travels_cannot_be_read_on_the_way(pair: Callable[..., Pair]) -> None:
    passed: list[bytes] = []

    def note(number: int, data: bytes) -> bytes:
        passed.append(data)
        return data

    made = pair(note)
    made.a.send(B, "x", {"text": "a secret"}, TensorVector(torch.full((1000,), 1.5)))
    message = made.b.receive("x", timeout=60)
    assert isinstance(message.vector, TensorVector)
    assert message.body == {"text": "a secret"} and message.vector.tensor.unique() == 1.5
    seen = b"".join(passed)
    assert len(seen) > 4000
    for secret in (b"a secret", struct.pack("<f", 1.5) * 4, b"learner"):
        assert secret not in seen


@pytest.mark.parametrize("pause", [None, 0.01], ids=["silence", "one byte after the other"])
def test_who_does_not_come_to_the_point_is_turned_away_in_time(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, pause: float | None
) -> None:
    monkeypatch.setattr("unisono.fabric.network.tcp_listener.SHAKE_S", 0.3)
    made = pair()
    hello = client_hello()
    with socket.create_connection(tuple(made.place), timeout=60) as sock:
        sent = 0
        while pause is not None and sent < len(hello):
            try:
                sock.sendall(hello[sent : sent + 1])
            except ConnectionError:
                break
            sent += 1
            time.sleep(pause)
        assert sent < len(hello)
        assert drain(sock) == b""
    talk(made, 3)


def test_a_member_that_does_not_greet_is_turned_away_in_time(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.fabric.network.tcp_listener.SHAKE_S", 0.3)
    made = pair()
    with member(made.place) as sock:
        sock.sendall(frame(greeting())[:-1])
        assert drain(sock) == b""
    talk(made, 3)


# Credentials.


class Yesterday(datetime):
    """A clock that is late."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(timezone.utc) - timedelta(hours=12)


def test_an_expired_certificate_is_told_at_the_start() -> None:
    expired = make_credentials(timedelta(hours=-1))
    with pytest.raises(UserError, match=r"certificate expired on .* UTC: start .* --resume"):
        Host(network=NetworkSettings(expired, "127.0.0.1"))


def test_a_certificate_that_expires_during_a_run_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expired = make_credentials(timedelta(hours=-1))
    network = NetworkSettings(expired, "127.0.0.1", patience=0.2)
    with monkeypatch.context() as patch:
        patch.setattr("unisono.fabric.network.auth.datetime", Yesterday)
        hosts = [Host(network=network) for _ in range(2)]
    a, b = (host.node(learner(n)) for n, host in enumerate(hosts))
    a.meet(Member(B, b.endpoint))
    with pytest.raises(Cancelled) as told:
        a.send(B, "x", {})
        a.receive("never", timeout=20)
    assert "the run's certificate has expired" in str(told.value.__cause__)
    assert caplog.text.count("cannot connect to learner 1") == 1
    for host in hosts:
        host.close()


@pytest.mark.parametrize("text", ["", "abc", "7" * 64, CREDENTIALS[:300], CREDENTIALS[300:]])
def test_what_are_no_credentials_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match="no credentials of a run"):
        Host(network=NetworkSettings(text, "127.0.0.1"))


def test_the_secret_is_not_shown() -> None:
    key = CREDENTIALS.split("\n")[1]
    assert key not in repr(NetworkSettings(CREDENTIALS, "127.0.0.1"))


def test_every_run_has_an_authority_of_its_own() -> None:
    first, second = (make_credentials().split("-----BEGIN") for _ in range(2))
    assert len(first) == len(second) == 4
    assert not set(first[1:]) & set(second[1:])
    assert tls_contexts(CREDENTIALS)[0].verify_mode == ssl.CERT_REQUIRED


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_openssl_agrees(pair: Callable[..., Pair], tmp_path: Path) -> None:
    made = pair()
    secret, authority = tmp_path / "secret.pem", tmp_path / "authority.pem"
    secret.write_text(CREDENTIALS)
    authority.write_text(CREDENTIALS[CREDENTIALS.rindex("-----BEGIN") :])

    def openssl(*command: object) -> subprocess.CompletedProcess[str]:
        words = ["openssl", *map(str, command)]
        return subprocess.run(words, capture_output=True, text=True, input="", timeout=30)

    strict = ["-x509_strict", "-CAfile", authority]
    for purpose in ("sslserver", "sslclient"):
        assert openssl("verify", *strict, "-purpose", purpose, secret).returncode == 0
    days = 24 * 3600
    assert openssl("x509", "-in", secret, "-checkend", 29 * days).returncode == 0
    assert openssl("x509", "-in", secret, "-checkend", 31 * days).returncode == 1
    client = ["s_client", "-connect", f"127.0.0.1:{made.place.port}", "-CAfile", authority]
    client += ["-alpn", PROTOCOL, "-servername", MEMBER, "-verify_hostname", MEMBER]
    said = openssl(*client, "-verify_return_error", "-cert", secret, "-key", secret).stdout
    assert "Verify return code: 0 (ok)" in said and "TLSv1.3" in said
    assert f"ALPN protocol: {PROTOCOL}" in said
