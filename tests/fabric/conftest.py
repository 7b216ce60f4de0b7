"""What the tests of the fabrics share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

pytest.register_assert_rewrite("unisono.testing.conformance")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The machine's cores are for the players."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _hectic() -> Iterator[None]:
    """Threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
