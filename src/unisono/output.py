"""Output that cannot be written ends nothing: a pipe's reader may leave, a disk be full."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def tell(*lines: str) -> None:
    """Prints lines to standard error, if it can be written."""
    with suppress(OSError):
        print("".join(f"{line}\n" for line in lines), end="", file=sys.stderr, flush=True)


class _Stream(io.FileIO):
    """A file whose writes never fail; ``on_loss`` is called with the first error."""

    def __init__(self, stream: io.TextIOWrapper, on_loss: Callable[[OSError], None]) -> None:
        super().__init__(stream.fileno(), "wb", closefd=False)
        self._stream = stream  # which would close the descriptor if it were collected
        self.error: OSError | None = None
        self._on_loss = on_loss

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.error is None:
                self.error = error
                self._on_loss(error)
            return memoryview(data).nbytes


def go_on_without_output(say: Callable[[str], None] | None = None) -> None:
    """What this process cannot print from now on is lost, and said once if it is more than a pipe.

    Args:
        say: prints a line on standard error.
    """
    say = say or (lambda line: tell(f"unisono: {line}"))

    def on_loss(error: OSError) -> None:
        if error.errno != errno.EPIPE:
            say(f"standard output cannot be written: {error.strerror}")

    sys.stdout = _durable(sys.stdout, on_loss)
    sys.stderr = _durable(sys.stderr, lambda error: None)


def output_lost() -> bool:
    """Whether standard output could not be written, by another reason than a reader who left."""
    print(end="", flush=True)
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    error = raw.error if isinstance(raw, _Stream) else None
    return error is not None and error.errno != errno.EPIPE


def _durable(stream: Any, on_loss: Callable[[OSError], None]) -> Any:
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        raw = _Stream(stream, on_loss)
    except OSError:  # it is no file, but something of a test or a notebook
        return stream
    with suppress(OSError):
        stream.flush()
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        cast("BinaryIO", raw) if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
