"""Where a process is reached: ``unix:PATH``, ``tcp:ADDRESS:PORT``, or several, the best last.

A process that listens on a network says all its places in one text, with the machine that its Unix
socket is on: ``tcp:10.0.0.7:4711 unix@MACHINE:PATH``. Who is on the same machine takes that one.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from unisono.errors import UserError

_SIOCGIFADDR = 0x8915
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/net")
_ADDRESSES6 = Path("/proc/net/if_inet6")
_GLOBAL = 0


class SocketAddress(NamedTuple):
    """An address of IPv4 or IPv6, and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"tcp:{host}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """The family of sockets that reach it."""
        return socket.AF_INET6 if ":" in self.address else socket.AF_INET

    @staticmethod
    def parse(text: str) -> SocketAddress:
        host, colon, port = text.removeprefix("tcp:").rpartition(":")
        if not (text.startswith("tcp:") and colon and port.isdigit()):
            raise UserError(f"{text!r} is not tcp:ADDRESS:PORT, such as tcp:[fd00::7]:4711")
        return SocketAddress(host.removeprefix("[").removesuffix("]"), int(port))


_ELSEWHERE = SocketAddress("192.0.2.1", 9)
"""An address that nobody has (RFC 5737): the way to it is the way to the rest of the world."""


def machine() -> str:
    """A name for this machine since it was started; a network namespace is a machine."""
    return f"{_BOOT.read_text().strip()}.{_NAMESPACE.stat().st_ino}"


def join(tcp: SocketAddress, path: Path | None) -> str:
    """All places of one process."""
    return str(tcp) if path is None else f"{tcp} unix@{machine()}:{path}"


def local_path(endpoint: str) -> str | None:
    """The Unix socket at which this process reaches the endpoint; None: only over a network."""
    for text in endpoint.split(" "):
        if text.startswith("unix:"):
            return text.removeprefix("unix:")
        if text.startswith(f"unix@{machine()}:"):
            path = text.partition(":")[2]
            return path if Path(path).is_socket() else None
    return None


def tcp_place(endpoint: str) -> SocketAddress:
    """The place on a network."""
    return SocketAddress.parse(endpoint.split(" ")[0])


def resolve(host: str, port: int) -> SocketAddress:
    """The place of a host by its name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UserError(f"the host {host!r} is not known here ({error.strerror})") from None
    return SocketAddress(str(found[0][4][0]), port)


def route_to(place: SocketAddress) -> str:
    """The address of this machine from which it reaches another; nothing is sent."""
    with socket.socket(place.family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((place.address, place.port or 1))
        except OSError as error:
            raise UserError(
                f"there is no route to {place.address} ({error.strerror}): "
                "name the interface to use"
            ) from None
        return str(sock.getsockname()[0])


def address_of(interface: str) -> str:
    """An interface's address, IPv4 first; an address is taken as it is."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, interface)
        except OSError:
            continue
        return interface
    found = _address4(interface) or _address6(interface)
    if found is None:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise UserError(f"{interface!r} is no interface with an address here; there are {known}")
    return found


def addresses() -> list[str]:
    """Those of this machine that others may reach, the one towards the rest of the world first."""
    found: list[str] = []
    with suppress(UserError):
        found.append(route_to(_ELSEWHERE))
    for _, name in socket.if_nameindex():
        found += [address for address in (_address4(name), _address6(name)) if address]
    return [a for a in dict.fromkeys(found) if not a.startswith("127.")]


def first_reached(places: Sequence[SocketAddress], seconds: float) -> SocketAddress | None:
    """The first place where somebody accepts a connection; each has so many seconds to do it."""
    for place in places:
        with suppress(OSError):
            socket.create_connection((place.address, place.port), seconds).close()
            return place
    return None


def interface_of(address: str) -> str:
    """The name of the interface that has an address; empty if none has."""
    for _, name in socket.if_nameindex():
        if address in (_address4(name), _address6(name)):
            return name
    return ""


def _address4(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _address6(interface: str) -> str | None:
    """The first global one: a link's own addresses mean nothing on another machine."""
    if not _ADDRESSES6.is_file():
        return None
    for link in _ADDRESSES6.read_text().splitlines():
        digits, _, _, scope, _, name = link.split()
        if name == interface and int(scope, 16) == _GLOBAL:
            return socket.inet_ntop(socket.AF_INET6, array.array("B", bytes.fromhex(digits)))
    return None
