"""What the tests of the fabrics share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("support.conformance")


@pytest.fixture
def _hectic() -> Iterator[None]:
    """Threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
