"""Requests of other processes of the same user: a line of JSON there, a line of JSON back."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_LONGEST = 4096
"""Bytes of a request."""
_READ_S = 1.0
"""Seconds that whoever has connected has to say what it wants."""

Respond = Callable[[dict[str, Any]], dict[str, Any]]


class RequestSocket:
    """Listens in a folder that only this user can enter; needs no thread.

    Raises:
        OSError: nothing can listen there.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(path))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise

    def answer(self, respond: Respond, wait_s: float = 0.0) -> None:
        """Answers all who have connected and still wait for it.

        If nobody has connected, it waits so long for the first. What somebody asked who has given
        up by now is not done.
        """
        self._socket.settimeout(wait_s)
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError, ValueError):
                connection.settimeout(_READ_S)
                request = json.loads(_read_line(connection))
                if isinstance(request, dict) and not _has_hung_up(connection):
                    connection.sendall(json.dumps(respond(request)).encode() + b"\n")
            self._socket.settimeout(0.0)

    def close(self) -> None:
        self._socket.close()


def send_request(path: Path, request: dict[str, Any], patience: float) -> dict[str, Any]:
    """Asks the process that listens at a path.

    Raises:
        OSError: nobody listens there, or there was no answer in ``patience`` seconds.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as file:
            line = file.readline()
    try:
        answer = json.loads(line)
    except ValueError:
        raise ConnectionAbortedError("no answer") from None
    if not isinstance(answer, dict):
        raise ConnectionAbortedError("no answer")
    return answer


def _has_hung_up(connection: socket.socket) -> bool:
    patience = connection.gettimeout()
    connection.settimeout(0.0)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(patience)


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST:
        part = connection.recv(_LONGEST - len(line))
        if not part:
            break
        line += part
    return line
