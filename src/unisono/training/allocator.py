"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""
LARGEST = 2**31 - 1
"""The largest value that it takes."""
LARGEST_OF_OLD_GLIBC = 32 * 2**20
"""The largest mmap threshold that old versions of glibc take."""


def keep_freed_memory() -> None:
    """Lets this process keep memory that it frees, and use it again.

    By default glibc may give large blocks back to the kernel, and each training step asks for the
    same ones again: a page fault for every 4 kB, which took a fifth of the CPU time of one SGD
    learner with the default network. Other C libraries do as they do.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_TRIM_THRESHOLD, LARGEST)
    if not mallopt(M_MMAP_THRESHOLD, LARGEST):
        mallopt(M_MMAP_THRESHOLD, LARGEST_OF_OLD_GLIBC)
