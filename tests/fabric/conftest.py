"""What the tests of the fabrics share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from support.two_hosts import Meddle, Pair

pytest.register_assert_rewrite("support.conformance")


@pytest.fixture
def _hectic() -> Iterator[None]:
    """Threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    """Makes pairs of hosts, and closes them."""
    pairs: list[Pair] = []

    def make(meddle: Meddle = lambda number, data: data, piece: int = 65536) -> Pair:
        pairs.append(Pair(meddle, piece))
        return pairs[-1]

    yield make
    for made in pairs:
        made.close()
