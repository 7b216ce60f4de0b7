"""Requests on a socket of one's own: of those who wait for the answer, and those who do not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from unisono.fabric.local.request_socket import RequestSocket, send_request

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # a name short enough for sockets
        yield Path(folder, "socket")


def test_what_is_asked_by_those_who_gave_up_is_not_done(path: Path) -> None:
    """Three have asked a process that was busy; only the one that still waits is answered."""
    asked: list[dict[str, Any]] = []

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {"done": True}

    listener = RequestSocket(path)
    for number in range(2):
        with pytest.raises(TimeoutError):
            send_request(path, {"click": number}, 0.01)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(send_request, path, {"click": 2}, 30.0)
        while not waits.done():
            listener.answer(respond, 0.05)
    listener.close()
    assert asked == [{"click": 2}]
    assert waits.result() == {"done": True}
