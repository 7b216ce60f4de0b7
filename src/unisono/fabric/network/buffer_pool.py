"""Memory for vectors sent over a network, reused because fresh pages are expensive."""

from __future__ import annotations

import threading

import torch

_SMALLEST = 64 * 1024
_KEPT = 2
"""Free pieces of one size that are kept: one to send from, one to receive into."""


class BufferPool:
    """Pieces of memory by size, each with one user at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, nbytes: int) -> torch.Tensor:
        """At least that many bytes."""
        size = max(_SMALLEST, 1 << (max(nbytes, 1) - 1).bit_length())
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return torch.empty(size, dtype=torch.uint8)

    def give(self, memory: torch.Tensor) -> None:
        """Takes a piece back that nobody uses any more."""
        with self._lock:
            free = self._free.setdefault(memory.numel(), [])
            if len(free) < _KEPT:
                free.append(memory)


def as_bytes(memory: torch.Tensor, nbytes: int) -> memoryview:
    """The first bytes of a piece, without a copy."""
    return memory.numpy()[:nbytes].data
