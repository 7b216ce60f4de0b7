"""Disks with little room."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of its own with little room, under a name short enough for sockets."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Files of this process grow no further."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
