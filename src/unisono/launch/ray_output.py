"""What learners on a cluster print: Ray copies it to this process, a while after it was printed.

Ray does not wait for the copies when a run ends, so the last lines of a script would be lost. Each
learner prints a mark when it has ended, on both of its streams, and the run waits for the marks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

PATIENCE_S = 10.0
"""Seconds for the marks of learners that have ended: Ray copies lines within one or two."""

_Place = tuple[str, int]
"""A stream, and the learner whose it is."""


def print_end(run: str, number: int) -> None:
    """A learner has nothing more to say."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # The script may have closed it.
            print(f"{_mark(run)}{number}.", file=stream, flush=True)


class ClusterOutput:
    """The streams of this process, on which Ray prints the lines of the learners."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._seen: set[_Place] = set()
        self._wanted: set[_Place] | None = None
        self._all: Future[None] = Future()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, marks are taken out of the streams, and noted."""
        streams = sys.stdout, sys.stderr
        sys.stdout = _Watched.around(streams[0], _mark(self._run), self._note("stdout"))
        sys.stderr = _Watched.around(streams[1], _mark(self._run), self._note("stderr"))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams

    def wait_for(self, learners: Iterable[int]) -> None:
        """Waits until all that these have printed is here, for a while."""
        self._wanted = {(name, number) for number in learners for name in ("stdout", "stderr")}
        self._look()
        wait([self._all], PATIENCE_S)

    def _note(self, name: str) -> Callable[[int], None]:
        def seen(number: int) -> None:
            self._seen.add((name, number))
            self._look()

        return seen

    def _look(self) -> None:
        if self._wanted is not None and self._wanted <= self._seen:
            with suppress(InvalidStateError):  # Ray's thread has seen it, too.
                self._all.set_result(None)


class _Watched:
    """A stream without the lines that hold a mark; Ray prints each line with one call."""

    def __init__(self, stream: TextIO, mark: str, seen: Callable[[int], None]) -> None:
        self._stream = stream
        self._mark = mark
        self._seen = seen
        self._drop_end = False

    @classmethod
    def around(cls, stream: TextIO, mark: str, seen: Callable[[int], None]) -> TextIO:
        return cast("TextIO", cls(stream, mark, seen))

    def write(self, text: str) -> int:
        _, mark, rest = text.partition(self._mark)
        number = rest.partition(".")[0]
        if mark and number.isdecimal():
            self._drop_end = not text.endswith("\n")
            self._seen(int(number))
            return len(text)
        if self._drop_end and text == "\n":
            self._drop_end = False
            return 1
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _mark(run: str) -> str:
    return f"{run}: this is all of learner "
