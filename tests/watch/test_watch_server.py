"""The live page over HTTP: who may see it, clients that go away, and the end."""

from __future__ import annotations

import hashlib
import http.client
import json
import platform
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.live_events import Cluster
from unisono.config import load
from unisono.errors import UserError
from unisono.fabric.local.request_socket import RequestSocket
from unisono.fabric.network.http_server import HttpServer
from unisono.runs import RunDirectory, format_event
from unisono.watch import server as pages
from unisono.watch.server import is_loopback, serving


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", load(None, [], {}))
    with run.metrics.open("ab") as file:
        cluster = Cluster(3, lambda event: file.write(format_event(event)))
        cluster.start()
        cluster.speed[2] = 100.0
        cluster.run(8)
        cluster.lose(1)
        counts = {"total": 50, "free": 20, "leased": 10, "committed": 20, "redone": 2}
        cluster.tell("status", **counts)
    return run


@pytest.fixture
def server(run: RunDirectory) -> Iterator[HttpServer]:
    with serving(run) as (server, _):
        yield server


def ask(
    port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def subscribe(port: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/events")
    return connection, connection.getresponse()


def first_event(stream: http.client.HTTPResponse) -> dict[str, object]:
    found: dict[str, object] = json.loads(stream.readline().removeprefix(b"data: "))
    return found


def test_the_page_needs_nothing_from_elsewhere(server: HttpServer) -> None:
    status, headers, body = ask(server.port, "/")
    text = body.decode()
    assert status == 200 and "<h1" in text
    assert "{{" not in text
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|https?://(?!www\.w3\.org)""", text)
    assert "default-src 'none'" in headers["content-security-policy"]


def test_the_events(server: HttpServer) -> None:
    connection, stream = subscribe(server.port)
    assert stream.getheader("Content-Type") == "text/event-stream"
    state = first_event(stream)["state"]
    connection.close()
    assert isinstance(state, dict)
    assert state["slow"][0]["learner"] == 2
    rows = {row["n"]: row for row in state["learners"]}
    assert rows[1]["state"] == "lost" and rows[2]["slow"] is True and rows[0]["host"] == "host0"


def test_a_client_that_goes_away_is_forgotten(server: HttpServer) -> None:
    for _ in range(5):
        connection, stream = subscribe(server.port)
        first_event(stream)
        connection.close()
        stream.close()
    deadline = time.monotonic() + 100
    while server.streams and time.monotonic() < deadline:
        assert ask(server.port, "/")[0] == 200
    assert server.streams == 0


def test_streams_end_with_the_server(run: RunDirectory) -> None:
    """Those who look get the last state at once; one that takes nothing holds nobody up."""
    stalled = socket.socket()
    with serving(run) as (server, _):
        stalled.connect(("127.0.0.1", server.port))
        connection, stream = subscribe(server.port)
        first_event(stream)
        stream.readline()
        run.summary.write_text("{}")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    rest = [line for line in stream.read().split(b"\n") if line]
    assert json.loads(rest[-1].removeprefix(b"data: "))["state"]["stage"] == "finished"
    connection.close()
    stalled.close()
    with pytest.raises(OSError):
        ask(server.port, "/")


PATHS = ["/", "/events", "/metrics", "/nothing", "/?token=", "/?token=wrong", "/events?token=wrong"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_the_token_there_is_nothing_but_a_refusal(
    run: RunDirectory, path: str, method: str
) -> None:
    with serving(run, token="secret") as (server, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "unisono=secret; x"}):
            status, sent, body = ask(server.port, path, method, **headers)
            assert status == 403
            assert body == b"refused: open the address that unisono printed\n"
            assert "set-cookie" not in sent


def test_with_the_token_the_browser_gets_a_cookie(run: RunDirectory) -> None:
    with serving(run, token="secret") as (server, url):
        assert url.endswith("/?token=secret")
        status, headers, _ = ask(server.port, "/?token=secret")
        assert status == 303 and headers["location"] == "/#token=secret"
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        kept = cookie.split(";")[0]
        assert ask(server.port, "/", Cookie=kept)[0] == 200
        assert ask(server.port, "/metrics", Authorization="Bearer secret")[0] == 200


def test_tokens_are_compared_in_constant_time(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def digest(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return False

    monkeypatch.setattr(pages.hmac, "compare_digest", digest)
    with serving(run, token="secret") as (server, _):
        assert ask(server.port, "/?token=secret")[0] == 403
    assert (b"secret", b"secret") in compared


def test_a_token_is_made_where_others_can_reach_the_page(run: RunDirectory) -> None:
    with serving(run, "0.0.0.0") as (server, url):
        token = urlsplit(url).query.removeprefix("token=")
        assert len(token) >= 32
        assert ask(server.port, "/")[0] == 403
        assert ask(server.port, "/metrics", Authorization=f"Bearer {token}")[0] == 200


def test_no_page_from_elsewhere_reaches_it_by_another_name(server: HttpServer) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert ask(server.port, "/metrics", Host=host)[0] == 403
    for host in ("localhost", f"localhost:{server.port}", "127.0.0.1:1", "[::1]:80"):
        assert ask(server.port, "/metrics", Host=host)[0] == 200


# Requests to the run.


@pytest.fixture
def asked(run: RunDirectory, tmp_path: Path) -> Iterator[list[dict[str, object]]]:
    """What a run that takes requests was asked, by its own socket."""
    found: list[dict[str, object]] = []
    over = threading.Event()
    socket_ = RequestSocket(tmp_path / "control.sock")
    note = {"socket": str(tmp_path / "control.sock"), "host": platform.node(), "actions": ["stop"]}
    run.control.write_text(json.dumps(note))

    def respond(request: dict[str, object]) -> dict[str, object]:
        found.append(request)
        return {"done": True, "text": "it will"}

    def serve() -> None:
        while not over.is_set():
            socket_.answer(respond, 0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    yield found
    over.set()
    thread.join()
    socket_.close()


STOP = b'{"action": "stop", "learner": null}'


def refused_headers(token: str, port: int) -> list[dict[str, str]]:
    """What a page from elsewhere, or somebody without the token, could send."""
    own = f"http://127.0.0.1:{port}"
    return [
        {},
        {"X_Unisono_Token": ""},
        {"X_Unisono_Token": "wrong"},
        {"X_Unisono_Token": token + "x"},
        {"Authorization": f"Bearer {token}"},
        {"Cookie": f"{cookie_name(token)}={token}"},
        {"X_Unisono_Token": token, "Origin": "http://evil.example"},
        {"X_Unisono_Token": token, "Origin": "null"},
        {"X_Unisono_Token": token, "Origin": f"http://127.0.0.1:{port + 1}"},
        {"X_Unisono_Token": token, "Origin": own, "Sec_Fetch_Site": "cross-site"},
        {"X_Unisono_Token": token, "Host": "evil.example", "Origin": "http://evil.example"},
    ]


def cookie_name(token: str) -> str:
    return "unisono_" + hashlib.sha256(token.encode()).hexdigest()[:8]


@pytest.mark.parametrize("path", ["/control", "/control?token={token}", "/", "/events", "/x"])
def test_no_request_without_the_token_in_its_header(
    run: RunDirectory, asked: list[dict[str, object]], path: str
) -> None:
    """On this machine, too: nothing but a refusal, and the run hears nothing of it."""
    with serving(run) as (server, url):
        token = urlsplit(url).query.removeprefix("token=")
        for headers in refused_headers(token, server.port):
            status, sent, body = ask(server.port, path.format(token=token), "POST", STOP, **headers)
            assert status == 403
            assert body == b"refused: open the address that unisono printed\n"
            assert not {"set-cookie", "access-control-allow-origin"} & sent.keys()
        assert ask(server.port, "/control", "OPTIONS", Origin="http://evil.example")[0] == 501
        assert ask(server.port, f"/control?token={token}")[0] == 404
    assert asked == []


def test_with_the_token_the_run_is_asked(run: RunDirectory, asked: list[dict[str, object]]) -> None:
    with serving(run) as (server, url):
        token = urlsplit(url).query.removeprefix("token=")
        own = f"http://127.0.0.1:{server.port}"
        with_token = {"X_Unisono_Token": token, "Origin": own, "Sec_Fetch_Site": "same-origin"}
        status, headers, body = ask(server.port, "/control", "POST", STOP, **with_token)
        assert status == 200 and json.loads(body) == {"done": True, "text": "it will"}
        assert headers["content-type"] == "application/json"
        other = ask(server.port, "/control", "POST", b'{"action": "add"}', **with_token)[2]
        assert not json.loads(other)["done"]
        for bad in (b"", b"{", b"[]", b"{}", b"x" * 5000):
            assert ask(server.port, "/control", "POST", bad, **with_token)[0] == 400
        assert ask(server.port, "/", "POST", STOP, **with_token)[0] == 404
    assert asked == [{"action": "stop", "learner": None}]


def test_others_look_while_the_run_is_asked(run: RunDirectory, tmp_path: Path) -> None:
    """The run answers only after somebody else has seen the page."""
    note = {"socket": str(tmp_path / "control.sock"), "host": platform.node(), "actions": ["stop"]}
    run.control.write_text(json.dumps(note))
    hears, seen = threading.Event(), threading.Event()

    def respond(request: dict[str, object]) -> dict[str, object]:
        hears.set()
        return {"done": seen.wait(60)}

    listener = RequestSocket(tmp_path / "control.sock")
    with serving(run) as (server, url), ThreadPoolExecutor(2) as pool:
        token = urlsplit(url).query.removeprefix("token=")
        post = pool.submit(ask, server.port, "/control", "POST", STOP, X_Unisono_Token=token)
        run_ = pool.submit(listener.answer, respond, 60.0)
        assert hears.wait(60)
        assert ask(server.port, "/metrics")[0] == 200
        seen.set()
        assert json.loads(post.result()[2]) == {"done": True}
        run_.result()
    listener.close()


def test_the_page_says_why_a_run_takes_no_requests(run: RunDirectory) -> None:
    def offered() -> tuple[object, object]:
        with serving(run) as (server, _):
            connection, stream = subscribe(server.port)
            state = first_event(stream)["state"]
            connection.close()
        assert isinstance(state, dict)
        return state["actions"], state["why_none"]

    assert offered() == ([], "only unisono train on one machine accepts requests")
    note = {"socket": "/nowhere", "host": platform.node(), "actions": ["stop"]}
    run.control.write_text(json.dumps(note))
    assert offered() == (["stop"], "")
    with serving(run) as (server, url):
        token = urlsplit(url).query.removeprefix("token=")
        answer = ask(server.port, "/control", "POST", STOP, X_Unisono_Token=token)[2]
        assert json.loads(answer)["text"] == "the run does not respond: has it ended?"
    run.control.write_text(json.dumps({**note, "host": "far"}))
    assert offered() == ([], "the run accepts requests only on its own machine, far")
    run.control.write_text('{"host": 1')
    assert offered()[0] == []
    run.summary.write_text("{}")
    assert offered() == ([], "the run has ended")


def test_a_wrong_token_in_the_address_is_refused_on_this_machine_too(server: HttpServer) -> None:
    assert ask(server.port, "/?token=wrong")[0] == 403
    assert ask(server.port, "/")[0] == 200


def test_what_is_on_this_machine_alone() -> None:
    assert [is_loopback(a) for a in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(a) for a in ("0.0.0.0", "::", "10.0.0.1", "example", "")] == [False] * 5


def test_a_port_in_use_is_one_line(run: RunDirectory, server: HttpServer) -> None:
    used = f"port {server.port}: Address already in use; choose"
    with pytest.raises(UserError, match=used), serving(run, port=server.port):
        pass
    with (
        pytest.raises(UserError, match=r"192\.0\.2\.1 is no address"),
        serving(run, "192.0.2.1"),
    ):
        pass


def test_other_methods_and_paths(server: HttpServer) -> None:
    assert ask(server.port, "/../config.toml")[0] == 404
    assert ask(server.port, "/", "DELETE")[0] == 501


def test_prometheus_reads_the_metrics(server: HttpServer) -> None:
    """Its own parser does."""
    status, headers, body = ask(server.port, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("learner")): sample
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert samples["unisono_learner_up", "0"].value == 1
    assert samples["unisono_learner_up", "1"].value == 0
    assert samples["unisono_learner_slow", "2"].value == 1
    assert samples["unisono_learner_examples_total", "0"].value == 8000
    assert samples["unisono_learner_up", "0"].labels["host"] == "host0"
    assert samples["unisono_minibatches_free", None].value == 20
    assert samples["unisono_minibatches_committed_total", None].value == 20
    assert ("unisono_heldout_logprob", None) not in samples


def test_names_are_quoted_for_prometheus(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / 'a "quoted" \\ run', load(None, [], {}))
    with serving(run) as (server, _):
        text = ask(server.port, "/metrics")[2].decode()
    labels = [s.labels for f in text_string_to_metric_families(text) for s in f.samples]
    assert labels[0]["run"] == run.path.name
    with serving(run) as (server, _):
        assert b"<title>a &quot;quoted&quot;" in ask(server.port, "/")[2]
