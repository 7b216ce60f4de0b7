"""A switch that holds every frame for a while: latency where the kernel cannot make any.

    python switch.py SECONDS DEVICE DEVICE...

joins the devices as a bridge would; it needs root. What comes in at one is kept for so long, then
goes out at the device behind which its receiver was heard, or at all others. Frames keep what the
kernel knows of them (PACKET_VNET_HDR), so that 64 KB of TCP pass as one, and no checksum is missing
that a network card would have filled in. The program uses the standard library alone.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

READY = "switching"
_SOL_PACKET, _VNET_HDR, _IGNORE_OUTGOING, _ETH_P_ALL = 263, 15, 23, 3
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_ROOM = 64 << 20
"""Bytes a device may have waiting: its queue decides what is dropped, not the socket."""
_HEAD = 10
"""Bytes of the kernel's notes before a frame."""
_MOST = _HEAD + 14 + 65536
_TURN = 64
"""Frames taken in from one device before the others, and those that are due, have their turn."""


def port(device: str) -> socket.socket:
    """Everything that comes in at a device."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    sock.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for option in (_SNDBUFFORCE, _RCVBUFFORCE):
        sock.setsockopt(socket.SOL_SOCKET, option, _ROOM)
    sock.setblocking(False)
    sock.bind((device, _ETH_P_ALL))
    return sock


class Switch:
    """Frames on their way between some ports."""

    def __init__(self, ports: Sequence[socket.socket], delay: float) -> None:
        self._ports = ports
        self._delay = delay
        self._behind: dict[bytes, socket.socket] = {}
        self._held: deque[tuple[float, socket.socket, bytes]] = deque()

    def run(self) -> None:
        """For ever."""
        while True:
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            ready, _, _ = select.select(self._ports, [], [], wait)
            for source in ready:
                # OSError: nothing more for now, or the device is down: its cable is pulled.
                with suppress(OSError):
                    for _ in range(_TURN):
                        self._held.append(
                            (time.monotonic() + self._delay, source, source.recv(_MOST))
                        )
            while self._held and self._held[0][0] <= time.monotonic():
                _, source, frame = self._held.popleft()
                self._forward(source, frame)

    def _forward(self, source: socket.socket, frame: bytes) -> None:
        receiver, sender = frame[_HEAD : _HEAD + 6], frame[_HEAD + 6 : _HEAD + 12]
        self._behind[sender] = source
        known = self._behind.get(receiver)
        for target in self._ports if known is None else (known,):
            if target is not source:
                with suppress(OSError):  # Its queue is full, or it is down: the frame is lost.
                    target.send(frame)


def main() -> None:
    """Switches until it is killed."""
    delay, *devices = sys.argv[1:]
    with suppress(OSError):
        os.nice(-20)
    switch = Switch([port(device) for device in devices], float(delay))
    print(READY, flush=True)
    switch.run()


if __name__ == "__main__":
    main()
