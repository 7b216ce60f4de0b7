"""Files that are appended to while their disk may be full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.disks import at_most
from unisono.errors import UserError
from unisono.fabric import files
from unisono.fabric.files import AppendFile, retry_while_full


def lines(first: int, last: int) -> list[bytes]:
    return [f"line {number}\n".encode() for number in range(first, last)]


@pytest.mark.parametrize("room", [0, 1, 7, 8, 20])
def test_what_the_disk_refuses_is_written_later(
    room: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics"
    file = AppendFile(path)
    file.append(b"line 0\n")
    with at_most(7 + room):
        for line in lines(1, 10):
            file.append(line)
    for line in lines(10, 12):
        file.append(line)
    with at_most(path.stat().st_size):
        file.append(b"line 12\n")
    file.close()
    assert path.read_bytes() == b"".join(lines(0, 13))
    assert caplog.messages == [
        f"unisono: {path} cannot be written (File too large): lines are kept in memory until it can"
    ]


def test_several_threads_may_append(tmp_path: Path) -> None:
    """As the activities of a learner do; each line stays in one piece."""
    path = tmp_path / "log"
    file = AppendFile(path)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(file.append, lines(0, 5000), chunksize=50):
                pass
    finally:
        sys.setswitchinterval(before)
    file.close()
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines(0, 5000))


def test_memory_is_bounded_and_what_is_lost_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_WAITING", 30)
    path = tmp_path / "metrics"
    file = AppendFile(path)
    with at_most(0):
        for line in lines(0, 10):
            file.append(line)
        file.close()
    assert path.read_bytes() == b""
    assert caplog.messages[1] == f"unisono: 10 lines of {path} were lost: it could not be written"


@pytest.mark.parametrize("torn", [b"", b"tor", b"x" * 200_000])
@pytest.mark.parametrize("before", [b"", b"whole\n", b"one\n" + b"y" * 100_000 + b"\n"])
def test_a_torn_line_is_cut_off_before_more_is_appended(
    torn: bytes, before: bytes, tmp_path: Path
) -> None:
    """What a kill leaves; the next process must not write on in the same line."""
    path = tmp_path / "metrics"
    path.write_bytes(before + torn)
    file = AppendFile(path)
    file.append(b"next\n")
    file.close()
    assert path.read_bytes() == before + b"next\n"


def full(code: int, times: int) -> Callable[[], None]:
    """Fails so many times."""
    errors = [OSError(code, os.strerror(code))] * times

    def write() -> None:
        if errors:
            raise errors.pop()

    return write


def test_a_full_disk_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_RETRY_S", 0.001)
    for code in (errno.ENOSPC, errno.EDQUOT):
        caplog.clear()
        retry_while_full(full(code, 5), Path("model"), 300.0)
        assert caplog.messages == [
            f"unisono: model cannot be written ({os.strerror(code)}): trying again for 300 s",
            "unisono: model is written now",
        ]
    with pytest.raises(OSError, match="No space left"):
        retry_while_full(full(errno.ENOSPC, 1_000_000), Path("model"), 0.01)


def test_what_waiting_does_not_mend_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="too large"):
        retry_while_full(full(errno.EFBIG, 1), Path("model"), 300.0)
    with pytest.raises(OSError, match="No space left"):
        retry_while_full(full(errno.ENOSPC, 1), Path("model"), 0.0)
    assert not caplog.messages


def test_a_file_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/no/log: No such file"):
        AppendFile(tmp_path / "no" / "log")
    descriptors = len(os.listdir("/proc/self/fd"))
    file = AppendFile(tmp_path / "log")
    file.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
