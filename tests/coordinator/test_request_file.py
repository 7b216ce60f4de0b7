"""The file of what people ask of a run, on a disk that is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.disks import at_most
from unisono.coordinator.requests import Action, Requested, RequestFile


@pytest.mark.parametrize("room", [0, 1, 20])
def test_what_cannot_be_written_is_an_error_and_not_there(room: int, tmp_path: Path) -> None:
    """Nor a part of it, whatever part the disk has taken."""
    path = tmp_path / "requests"
    file = RequestFile(path)
    file.append(Action.REMOVE, 1)
    before = path.read_bytes()
    with at_most(len(before) + room), pytest.raises(OSError, match="File too large"):
        file.append(Action.REMOVE, 2)
    assert path.read_bytes() == before
    file.append(Action.STOP)
    found = [Requested(1, Action.REMOVE, 1), Requested(2, Action.STOP)]
    assert RequestFile(path).since(0) == found
