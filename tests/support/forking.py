"""Calls in a process with one thread, whose children may be forks: pytest-xdist's has two."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import Any, TypeVar

T = TypeVar("T")


def with_forks(function: Callable[..., T], *arguments: Any) -> T:
    """What a module's function returns in a fork."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(theirs, _Output(), function, arguments))
    process.start()
    theirs.close()
    try:
        result: T = ours.recv()
    finally:
        process.join()
    return result


class _Output:
    """Where this process' output goes now: it is captured anew for each test."""

    def __getstate__(self) -> list[Any]:
        return [DupFd(1), DupFd(2)]

    def __setstate__(self, descriptors: list[Any]) -> None:
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor.detach(), number)


def _call(
    answer: Connection, _: _Output, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    answer.send(function(*arguments))
