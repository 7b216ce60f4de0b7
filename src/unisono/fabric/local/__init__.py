"""Activities as threads, messages over shared memory and Unix sockets."""

from __future__ import annotations
