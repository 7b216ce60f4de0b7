"""For authors of strategies: toy learners, fault schedules, and the property suite."""

from __future__ import annotations

from unisono.testing.properties import Promises, check_strategy

__all__ = ["Promises", "check_strategy"]
