"""The live page's addresses: the page, its events, and Prometheus' metrics."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files

from unisono.fabric.network.http_server import HttpRequest, HttpResponse, HttpServer
from unisono.report.page import COLOUR_STYLE
from unisono.runs.directory import RunDirectory
from unisono.watch.feed import Feed
from unisono.watch.prometheus import CONTENT_TYPE, exposition
from unisono.watch.snapshot import Subscription, snapshot

LOCALHOST = "127.0.0.1"
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REFUSAL = HttpResponse(
    HTTPStatus.FORBIDDEN, b"refused: open the address that unisono has printed\n", headers=_SAFE
)


class Pages:
    """Answers requests about one run.

    Args:
        feed: the run.
        token: what a request must have; empty: whoever reaches it may look, by a name of this
            machine itself, so that no page from elsewhere can.
    """

    def __init__(self, feed: Feed, token: str = "") -> None:
        self._feed = feed
        self._token = token
        self._page, self._policy = _build_page(feed.run.path.resolve().name)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """One request."""
        if not self._is_allowed(request):
            return _REFUSAL
        if request.method != "GET":
            return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, b"GET only\n", headers=_SAFE)
        match request.path:
            case "/" if "token" in request.query:
                return self._without_token()
            case "/":
                html = "text/html; charset=utf-8"
                return HttpResponse(HTTPStatus.OK, self._page, html, _SAFE | self._policy)
            case "/events":
                subscription = Subscription(self._feed)
                kind = "text/event-stream"
                return HttpResponse(
                    HTTPStatus.OK, b"", kind, headers=_SAFE, stream=subscription.next
                )
            case "/metrics":
                self._feed.refresh()
                text = exposition(snapshot(self._feed)).encode()
                return HttpResponse(HTTPStatus.OK, text, CONTENT_TYPE, _SAFE)
        return HttpResponse(HTTPStatus.NOT_FOUND, b"there is nothing here\n", headers=_SAFE)

    def _is_allowed(self, request: HttpRequest) -> bool:
        if not self._token:
            return _is_local(request.headers.get("host", ""))
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        offered = (request.query.get("token", ""), bearer, self._cookie(request))
        wanted = self._token.encode()
        return any([hmac.compare_digest(wanted, each.encode()) for each in offered])

    def _cookie(self, request: HttpRequest) -> str:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie_name)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _without_token(self) -> HttpResponse:
        """The browser keeps the token, and not in its history."""
        cookie = f"{self._cookie_name}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        headers = {"Location": "/", "Set-Cookie": cookie} if self._token else {"Location": "/"}
        return HttpResponse(HTTPStatus.SEE_OTHER, headers=_SAFE | headers)

    @property
    def _cookie_name(self) -> str:
        """Cookies know no port: several runs on one host must not take each other's."""
        return "unisono_" + hashlib.sha256(self._token.encode()).hexdigest()[:8]


@contextmanager
def serving(
    run: RunDirectory, address: str = LOCALHOST, port: int = 0, token: str = ""
) -> Iterator[tuple[HttpServer, str]]:
    """Serves the page of a run, inside; yields the server and the page's address.

    Args:
        run: whose directory need not be there yet.
        address: to listen on. For any but this machine's own a token is needed.
        port: 0: any that is free.
        token: empty: one is made where it is needed.

    Raises:
        UserError: nothing can listen there.
    """
    if not token and not is_loopback(address):
        token = secrets.token_urlsafe(24)
    server = HttpServer(address, port, Pages(Feed(run), token))
    try:
        host = f"[{address}]" if ":" in address else address
        yield server, f"http://{host}:{server.port}/" + (f"?token={token}" if token else "")
    finally:
        server.close()


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name.strip("[]"))


def _build_page(name: str) -> tuple[bytes, dict[str, str]]:
    """The page, and the policy that lets the browser run its own script and nothing else."""
    folder = files("unisono.watch")
    style = COLOUR_STYLE + (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    page = (folder / "page.html").read_text(encoding="utf-8")
    for mark, text in (("NAME", escape(name)), ("STYLE", style), ("SCRIPT", script)):
        page = page.replace("{{" + mark + "}}", text)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page.encode(), {"Content-Security-Policy": policy}
