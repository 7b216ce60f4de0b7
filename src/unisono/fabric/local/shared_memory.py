"""Payload memory between processes of one host: slots with one owner at a time.

The sender fills a slot, the message passes it to the receiver, the receiver's release gives it
back. There is no lock in it and no name for it: the memory is a ``memfd`` whose descriptor travels
over the socket once, so a process that is killed leaves nothing behind.
"""

from __future__ import annotations

import os
import threading

import torch

from unisono.errors import UserError
from unisono.fabric.vector import TensorVector

_SMALLEST = 64 * 1024


class Slot:
    """One piece of shared memory of this process."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        try:
            self.fd = os.memfd_create("unisono", os.MFD_CLOEXEC)
            try:
                os.ftruncate(self.fd, size)
                self._memory = map_memory(self.fd)
            except BaseException:
                os.close(self.fd)
                raise
        except OSError as error:
            raise UserError(
                f"shared memory of {size} bytes cannot be made ({error.strerror}): raise the "
                "limits of this process (ulimit -f, ulimit -n), or use a smaller model"
            ) from None

    def fill(self, vector: TensorVector) -> None:
        """Copies the vector's values in."""
        as_vector(self._memory, len(vector), vector.tensor.dtype).assign(vector)

    def close(self) -> None:
        """Gives the descriptor and the mapping back; the memory goes with its last user."""
        os.close(self.fd)
        del self._memory


def map_memory(fd: int) -> torch.Tensor:
    """The bytes behind a descriptor, which may be closed then; unmapped with the last tensor.

    Through its name, because an ``mmap`` object would keep a descriptor of its own.
    """
    size = os.fstat(fd).st_size
    return torch.from_file(f"/proc/self/fd/{fd}", shared=True, size=size, dtype=torch.uint8)


def as_vector(memory: torch.Tensor, count: int, dtype: torch.dtype) -> TensorVector:
    """The start of a slot's memory as a vector, without a copy."""
    return TensorVector(memory[: count * dtype.itemsize].view(dtype))


class SlotPool:
    """The slots of one process; they are reused by size.

    A slot may be known to several receivers, and only one of them has it at a time. When a
    connection ends, nobody can say whether the other side still reads what was lent to it: it may
    be alive and only hold this side for dead. So such slots are discarded, never filled again;
    ``discarded`` has their numbers, for lines to tell receivers that keep them mapped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[Slot]] = {}
        self._made = 0
        self._closed = False
        self.discarded: frozenset[int] = frozenset()

    def take(self, nbytes: int) -> Slot:
        """A free slot of at least that size."""
        size = max(_SMALLEST, 1 << (max(nbytes, 1) - 1).bit_length())
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
            self._made += 1
            number = self._made
        return Slot(number, size)

    def give(self, slot: Slot) -> None:
        """Takes a slot back."""
        with self._lock:
            if not self._closed:
                self._free.setdefault(slot.size, []).append(slot)
                return
        slot.close()

    def discard(self, slot: Slot) -> None:
        """Gives a slot up that somebody may still read."""
        slot.close()
        with self._lock:
            self.discarded |= {slot.number}

    def close(self) -> None:
        """Closes the free slots; those in use are discarded first by closing their links."""
        with self._lock:
            self._closed = True
            for free in self._free.values():
                for slot in free:
                    slot.close()
            self._free.clear()
