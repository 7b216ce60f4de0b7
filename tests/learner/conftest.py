"""What the tests of learners share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import company
import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["simulated", "threads"])
def together(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a loop with several learners: on the virtual clock, and on threads."""
    return company.simulated if request.param == "simulated" else company.threads
