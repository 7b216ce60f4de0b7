"""Memory that is freed is used again."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

BLOCK = 40 * 2**20
"""By default glibc gives blocks of this size back as soon as they are freed."""
FAULTS = f"""
import resource, sys
import torch
from unisono.training.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def steps() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [torch.ones({BLOCK} // 4) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

steps()
print(steps())
"""
LIBRARY, VERSION = platform.libc_ver()
OLD = LIBRARY == "glibc" and tuple(map(int, VERSION.split("."))) < (2, 35)


@pytest.mark.long
@pytest.mark.skipif(LIBRARY != "glibc" or OLD, reason="the C library does not do as it is told")
def test_the_memory_of_one_step_serves_the_next() -> None:
    def faults(how: str) -> int:
        told = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
        )
        return int(told.stdout)

    pages = 5 * 4 * BLOCK // resource.getpagesize()
    assert faults("keep") < 0.3 * pages
    assert faults("default") > 0.9 * pages
