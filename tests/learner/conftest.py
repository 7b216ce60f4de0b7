"""What the tests of learners share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import loops as company


@pytest.fixture(params=["simulated", "threads"])
def together(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a loop with several learners: on the virtual clock, and on threads."""
    return company.simulated if request.param == "simulated" else company.threads
