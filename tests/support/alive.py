"""Whether a process that is no child of this one still runs."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may stay a zombie until init collects it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
