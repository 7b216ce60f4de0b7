"""A small HTTP server for pages about a run: a thread a connection, and never in anybody's way."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from unisono.errors import UserError

PERIOD = 1.0
"""Seconds between two parts of a stream."""
MOST_CONNECTIONS = 64
"""Connections at a time; more are refused."""
STALL_S = 10.0
"""Seconds after which a client that sends no request, or takes nothing, is given up."""
LONGEST_BODY = 4096
"""Bytes of a request's body; what is longer is not read."""
_LAST_S = 1.0
"""Seconds that streams have to send their last part when the server is closed."""

log = logging.getLogger("unisono")


@dataclass(frozen=True)
class HttpRequest:
    """A request for a page.

    Attributes:
        method: GET, POST, ...
        path: without the query.
        query: the last value of each name.
        headers: names in lower case.
        body: what came with it, at most ``LONGEST_BODY`` bytes.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class HttpResponse:
    """What is sent back.

    Attributes:
        status: as in HTTP.
        body: all of it, or what makes it, for which nobody else has to wait; not where there is a
            stream.
        content_type: of the body.
        headers: others.
        stream: called once a second for the next part, until it returns None, the client is gone
            or the server is closed; then once more.
    """

    status: HTTPStatus
    body: bytes | Callable[[], bytes] = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[], bytes | None] | None = None


Respond = Callable[[HttpRequest], HttpResponse]


class HttpServer:
    """Answers requests beside whatever else the process does, until it is closed.

    ``respond`` and the streams that it returns are called by one thread at a time; what makes a
    body is called beside them.

    Raises:
        UserError: nothing can listen there.
    """

    def __init__(self, address: str, port: int, respond: Respond) -> None:
        try:
            self._server = _Server(address, port, respond)
        except (OSError, OverflowError) as error:
            raise UserError(_why(address, port, error)) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens: the port that was asked for, or a free one for 0."""
        return int(self._server.server_address[1])

    @property
    def streams(self) -> int:
        """How many are being sent."""
        return self._server.streams

    def wait(self) -> None:
        """Waits for an interruption, or for another thread to close it."""
        self._thread.join()

    def close(self) -> None:
        """Sends what is last in the streams, and stops listening; it waits for no client."""
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.wait_for_streams(_LAST_S)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, address: str, port: int, respond: Respond) -> None:
        if ":" in address:
            self.address_family = socket.AF_INET6
        self.respond = respond
        self.closing = threading.Event()
        self.one_at_a_time = threading.Lock()
        self._changed = threading.Condition()
        self._connections = 0
        self.streams = 0
        super().__init__((address, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._changed:
            return self._connections < MOST_CONNECTIONS

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._connections += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._connections -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error; any other is for those who look for it."""
        log.debug("unisono: a request of %s failed", client_address, exc_info=True)

    @contextlib.contextmanager
    def streaming(self) -> Any:
        with self._changed:
            self.streams += 1
        try:
            yield
        finally:
            with self._changed:
                self.streams -= 1
                self._changed.notify_all()

    def wait_for_streams(self, patience: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.streams == 0, patience)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = STALL_S
    server_version = "unisono"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        request = HttpRequest(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query)),
            {name.lower(): value for name, value in self.headers.items()},
            self._read_body(),
        )
        try:
            with self.server.one_at_a_time:
                response = self.server.respond(request)
            body = response.body if isinstance(response.body, bytes) else response.body()
        except Exception:
            log.debug("unisono: %s could not be answered", self.path, exc_info=True)
            body = b"this cannot be shown\n"
            response = HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR)
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.stream is None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if response.stream is None:
            self.wfile.write(body)
        else:
            self._send_stream(response.stream)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_BODY:
            return b""
        return self.rfile.read(int(length))

    def _send_stream(self, part: Callable[[], bytes | None]) -> None:
        with self.server.streaming():
            is_last = False
            while True:
                with self.server.one_at_a_time:
                    data = part()
                if data is None:
                    return
                self.wfile.write(data)
                if is_last:
                    return
                is_last = self.server.closing.wait(PERIOD)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody wants a line a request."""


def _why(address: str, port: int, error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"{port} is no port: choose one from 1 to 65535, or 0 for any that is free"
    if isinstance(error, socket.gaierror) or getattr(error, "errno", 0) == errno.EADDRNOTAVAIL:
        return f"{address} is no address of this machine"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot listen on {address}, port {port}: {reason}; choose another port, 0 for any"
