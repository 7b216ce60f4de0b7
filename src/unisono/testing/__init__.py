"""For authors of strategies: toy learners, fault schedules, and the property suite."""

from __future__ import annotations
