"""What tests in several packages share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


def pytest_configure() -> None:
    """The models of tests are small: threads of a busy machine would wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A training in this process may have set as many as there are cores."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real speech: UNISONO_SHARED, or `shared` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("UNISONO_SHARED", beside))
    if folder.is_dir():
        return folder
    reason = f"no shared data at {folder}: set UNISONO_SHARED"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
