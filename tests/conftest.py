"""What tests in several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
