"""What may come along a network: relays that break, change and record; strangers with rubbish."""

from __future__ import annotations

import random
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from unisono.fabric.network.auth import MEMBER, PROTOCOL
from unisono.fabric.network.endpoints import SocketAddress

_PIECE = 65536


class Relay:
    """Stands between a caller and a place, and may meddle with what the caller sends.

    ``meddle`` gets the number of the connection and the bytes; what it returns goes on, None breaks
    the connection with a reset, on both sides. It gets ``piece`` bytes at a time, at most.
    """

    def __init__(
        self,
        target: SocketAddress,
        meddle: Callable[[int, bytes], bytes | None],
        piece: int = _PIECE,
    ) -> None:
        self._target = target
        self._meddle = meddle
        self._piece = piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = SocketAddress("127.0.0.1", self._listener.getsockname()[1])
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                number = self.connections
                self.connections += 1
                threading.Thread(target=self._carry, args=(number, caller), daemon=True).start()

    def _carry(self, number: int, caller: socket.socket) -> None:
        with caller, suppress(OSError), socket.create_connection(self._target) as target:
            for sock in (caller, target):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                ready, _, _ = select.select([caller, target], [], [])
                if target in ready:
                    data = target.recv(_PIECE)
                    caller.sendall(data)
                else:
                    data = caller.recv(self._piece)
                    changed = self._meddle(number, data) if data else b""
                    if changed is None:
                        return
                    target.sendall(changed)
                if not data:
                    return


def client_hello() -> bytes:
    """How one begins a TLS connection who has no certificate."""
    context = ssl.create_default_context()
    context.set_alpn_protocols([PROTOCOL])
    said = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname=MEMBER).do_handshake()
    return said.read()


def rubbish(place: SocketAddress, count: int, seed: int = 0) -> None:
    """Connections of strangers, one after the other: scans, noise, other protocols, silence.

    Every tenth stays open, up to a few hundred, and says nothing more.
    """
    noise = random.Random(seed)
    silent: list[socket.socket] = []
    kinds = (
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        client_hello()[:11],
        client_hello(),
        b"\xff" * 100,
    )
    for number in range(count):
        try:
            sock = socket.create_connection(place, timeout=60)
        except OSError:
            continue  # The queue of those who wait is full: as good as refused.
        with suppress(OSError):
            sock.sendall(kinds[number % len(kinds)])
            if number % 7 == 0:
                sock.sendall(noise.randbytes(noise.randrange(200_000)))
        if number % 10 == 0 and len(silent) < 300:
            silent.append(sock)
        else:
            sock.close()
    for sock in silent:
        sock.close()
