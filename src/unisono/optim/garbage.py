"""Python's garbage collector, kept from work that it would break."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_waiting = 0
_was_on = False


@contextmanager
def no_collections() -> Iterator[None]:
    """A context in which the garbage collector does not begin by itself.

    It would destroy CUDA graphs that nobody uses any more and that are parts of cycles, in
    whatever thread it begins. If that thread captures a graph, the capture fails: a CUDA graph may
    not be destroyed there. torch collected garbage before each capture until 2.8, and no longer
    does.
    """
    global _waiting, _was_on
    with _lock:
        if _waiting == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _waiting += 1
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            if _waiting == 0 and _was_on:
                gc.enable()
