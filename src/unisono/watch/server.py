"""The live page's addresses: the page, its events, requests to the run, Prometheus' metrics."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from urllib.parse import urlsplit

from unisono.fabric.network.http_server import HttpRequest, HttpResponse, HttpServer
from unisono.report.page import COLOUR_STYLE
from unisono.runs.directory import RunDirectory
from unisono.watch.controls import Controls
from unisono.watch.feed import Feed
from unisono.watch.prometheus import CONTENT_TYPE, exposition
from unisono.watch.snapshot import Subscription, snapshot

LOCALHOST = "127.0.0.1"
TOKEN_HEADER = "x-unisono-token"
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REFUSAL = HttpResponse(
    HTTPStatus.FORBIDDEN, b"refused: open the address that unisono printed\n", headers=_SAFE
)


class Pages:
    """Answers requests about one run.

    Whoever may look needs the token to ask the run for something.

    Args:
        feed: the run.
        token: what no request can do without that changes anything.
        is_private: whether one cannot look without it, either. Otherwise whoever reaches the page
            may look, by a name of this machine itself, so that no page from elsewhere can.
    """

    def __init__(self, feed: Feed, token: str, *, is_private: bool) -> None:
        self._feed = feed
        self._controls = Controls(feed)
        self._token = token
        self._is_private = is_private
        self._page, self._policy = _build_page(feed.run.path.resolve().name)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method != "GET":
            return self._change(request) if self._may_change(request) else _REFUSAL
        if not self._may_look(request):
            return _REFUSAL
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

    def _may_look(self, request: HttpRequest) -> bool:
        if not self._is_private and "token" not in request.query:
            return _is_local(request.headers.get("host", ""))
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        offered = (request.query.get("token", ""), bearer, self._cookie(request))
        return any([self._is_token(each) for each in offered])

    def _may_change(self, request: HttpRequest) -> bool:
        """By the token in a header of our own alone: no page from elsewhere can make one send it.

        A cookie or an address would be sent by a link or a form on any page.
        """
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        is_own = origin is None or urlsplit(origin).netloc == host
        is_own = is_own and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        reached = self._is_private or _is_local(host)
        return self._is_token(headers.get(TOKEN_HEADER, "")) and is_own and reached

    def _is_token(self, offered: str) -> bool:
        return hmac.compare_digest(self._token.encode(), offered.encode())

    def _change(self, request: HttpRequest) -> HttpResponse:
        """Asks the run for something."""
        if request.method != "POST" or request.path != "/control":
            return HttpResponse(HTTPStatus.NOT_FOUND, b"there is nothing here\n", headers=_SAFE)
        try:
            wish = json.loads(request.body)
            action, learner = str(wish["action"]), wish.get("learner")
        except (ValueError, LookupError, TypeError, AttributeError):
            return HttpResponse(HTTPStatus.BAD_REQUEST, b"not a request\n", headers=_SAFE)
        self._feed.refresh()
        refusal = self._controls.refusal(action)

        def answer() -> bytes:
            if refusal:
                return json.dumps({"done": False, "text": refusal}).encode()
            return json.dumps(self._controls.ask(action, learner)).encode()

        return HttpResponse(HTTPStatus.OK, answer, "application/json", _SAFE)

    def _cookie(self, request: HttpRequest) -> str:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie_name)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _without_token(self) -> HttpResponse:
        """The browser keeps the token, and not in its history.

        The cookie is for looking; the part after # goes to the page's script and to no server.
        """
        headers = {"Location": f"/#token={self._token}"}
        if self._is_private:
            cookie = f"{self._cookie_name}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            headers["Set-Cookie"] = cookie
        return HttpResponse(HTTPStatus.SEE_OTHER, headers=_SAFE | headers)

    @property
    def _cookie_name(self) -> str:
        """Cookies know no port: several runs on one host must not take each other's."""
        return "unisono_" + hashlib.sha256(self._token.encode()).hexdigest()[:8]


@contextmanager
def serving(
    run: RunDirectory, address: str = LOCALHOST, port: int = 0, token: str = ""
) -> Iterator[tuple[HttpServer, str]]:
    """Serves the page of a run, inside; yields the server and the page's address, with its token.

    Args:
        run: whose directory need not be there yet.
        address: to listen on. On any but this machine's own one cannot look without the token.
        port: 0: any that is free.
        token: the page's token, without which one cannot look, either; empty: one is made.

    Raises:
        UserError: nothing can listen there.
    """
    is_private = bool(token) or not is_loopback(address)
    token = token or secrets.token_urlsafe(24)
    server = HttpServer(address, port, Pages(Feed(run), token, is_private=is_private))
    try:
        host = f"[{address}]" if ":" in address else address
        yield server, f"http://{host}:{server.port}/?token={token}"
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
