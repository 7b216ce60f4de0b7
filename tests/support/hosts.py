"""Hosts on one machine: network namespaces, each with a cable to one switch. They need root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from support import switch

_BURST, _QUEUE = "64kb", "50ms"


class Hosts:
    """Some namespaces; their switch is in one of its own.

    ``delay`` is the seconds that the switch holds every frame, on its way in either direction. With
    none the switch is the kernel's bridge; with one it is ``support.switch``.
    """

    def __init__(self, count: int, delay: float = 0.0) -> None:
        stem = f"u{os.getpid() % 100_000:x}"
        self._names = [f"{stem}-{n}" for n in range(count)]
        self._middle = f"{stem}-sw"
        self.count = count
        self._delay = delay
        self._switch: subprocess.Popen[str] | None = None

    def address(self, number: int) -> str:
        """Where a host is reached."""
        return f"10.77.0.{number + 1}"

    def inside(self, number: int) -> tuple[str, ...]:
        """The words before a command that is to run there."""
        return ("ip", "netns", "exec", self._names[number])

    def build(self) -> None:
        """Makes them; ``subprocess.CalledProcessError`` where that cannot be."""
        for name in (self._middle, *self._names):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for n, name in enumerate(self._names):
            peer = ("type", "veth", "peer", "name", _port(n), "netns", self._middle)
            _run("ip", "-n", name, "link", "add", "eth0", *peer)
            _run("ip", "-n", name, "address", "add", f"{self.address(n)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", self._middle, "link", "set", _port(n), "up")
        if self._delay:
            self._start_switch()
        else:
            _run("ip", "-n", self._middle, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", self._middle, "link", "set", "bridge", "up")
            for n in range(len(self._names)):
                _run("ip", "-n", self._middle, "link", "set", _port(n), "master", "bridge")

    def slow_down(self, megabits: int = 100) -> bool:
        """Every cable at so many Mbit/s, both ways; False if this kernel cannot."""
        shape = ("tbf", "rate", f"{megabits}mbit", "burst", _BURST, "latency", _QUEUE)
        try:
            for n, name in enumerate(self._names):
                for where, device in ((name, "eth0"), (self._middle, _port(n))):
                    _run("tc", "-n", where, "qdisc", "replace", "dev", device, "root", *shape)
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def pull_cable(self, number: int) -> None:
        """Nothing gets through any more, and nobody is told."""
        _run("ip", "-n", self._middle, "link", "set", _port(number), "down")

    def plug_in(self, number: int) -> None:
        """As it was."""
        _run("ip", "-n", self._middle, "link", "set", _port(number), "up")

    def kill(self, number: int) -> None:
        """As a power failure does: its processes are gone, and not a word of it gets out."""
        self.pull_cable(number)
        for pid in _run("ip", "netns", "pids", self._names[number]).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Takes everything down that is there."""
        if self._switch is not None:
            self._switch.kill()
            self._switch.communicate()
        for name in (*self._names, self._middle):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60)

    def _start_switch(self) -> None:
        devices = [_port(n) for n in range(len(self._names))]
        command = ["ip", "netns", "exec", self._middle, sys.executable, switch.__file__]
        command += [str(self._delay), *devices]
        self._switch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._switch.stdout is not None
        if self._switch.stdout.readline().strip() != switch.READY:
            raise subprocess.CalledProcessError(self._switch.wait(), command, stderr=b"no switch")


def _port(number: int) -> str:
    return f"p{number}"


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, timeout=60)
    return done.stdout.decode()
