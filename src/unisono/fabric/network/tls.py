"""Encryption of a connection, with the standard library alone and without certificates.

TLS 1.2 with an anonymous Diffie-Hellman exchange (the group ffdhe3072 of RFC 7919) and AES-GCM.
Such a channel is private, but nobody knows yet with whom. The proofs of the token that follow are
bound to it (``tls-unique``, RFC 5929): who stands in between has two channels, and neither side's
proof holds in the other. TLS finds what is changed or repeated, so frames carry no tags of their
own.
"""

from __future__ import annotations

import socket
import ssl
import threading
from functools import lru_cache
from pathlib import Path

from unisono.errors import UserError
from unisono.fabric.network.tcp_socket import TcpSocket

_GROUP = Path(__file__).with_name("ffdhe3072.pem")
_RECORD = 16 * 1024 + 512
_CIPHER = "ADH-AES128-GCM-SHA256:@SECLEVEL=0"


@lru_cache
def _context(listening: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listening else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_CIPHER)
    if listening:
        context.load_dh_params(str(_GROUP))
    return context


def check_encryption() -> None:
    """Raises if the OpenSSL of this Python cannot do it."""
    try:
        for listening in (True, False):
            _context(listening)
    except ssl.SSLError:
        raise UserError(
            f"{ssl.OPENSSL_VERSION} here has no anonymous Diffie-Hellman, which encryption needs: "
            "use a private network, or a tunnel such as WireGuard"
        ) from None


class TlsSocket(TcpSocket):
    """A wire whose bytes are private."""

    private = True

    def __init__(self, sock: socket.socket, *, listening: bool) -> None:
        super().__init__(sock)
        # One at a time: OpenSSL does not read and write at once on a connection.
        self._turn = threading.Lock()
        self._tls = _context(listening).wrap_socket(
            sock, server_side=listening, do_handshake_on_connect=False
        )
        self.sock = self._tls

    def shake(self) -> bool:
        """Goes on with TLS' own handshake; whether it is over."""
        try:
            self._tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    @property
    def binding(self) -> bytes:
        """What only the two ends of this very channel have in common."""
        return self._tls.get_channel_binding("tls-unique") or b""

    def receive_into(self, room: memoryview) -> int | None:
        """How many bytes came; 0: the end."""
        try:
            with self._turn:
                return self._tls.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError:
            return 0

    def expect(self, count: int) -> None:
        """As without TLS, which may have taken a record and a part of one off the socket."""
        super().expect(count - 2 * _RECORD)

    def send(self, data: memoryview) -> int | None:
        """How many bytes went; an error is found by reading."""
        try:
            with self._turn:
                return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError:
            return len(data)
